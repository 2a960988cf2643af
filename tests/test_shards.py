"""Ranks that share work: each piece once, nothing made twice, rank zero out last."""

import multiprocessing
import time
from pathlib import Path

import pytest

from distill.shards import once, share, working

PIECES = 12


def rank(folder: Path, number: int) -> None:
    import os

    os.environ["RANK"] = str(number)
    with working(folder):
        once(folder / "value.json", lambda: [number])
        paths = [folder / f"{i}.txt" for i in range(PIECES)]

        def make(i: int) -> None:
            time.sleep(0.02)
            with paths[i].open("x") as file:
                file.write(str(number))

        share(paths, make)
    (folder / f"left-{number}").write_text(str(time.monotonic()))


def test_two_ranks_make_each_piece_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank, args=(tmp_path, number)) for number in (0, 1)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0, 0]
    assert len(list(tmp_path.glob("*.txt"))) == PIECES


def test_what_is_there_is_neither_made_nor_changed(tmp_path: Path) -> None:
    path = tmp_path / "there.json"
    assert once(path, lambda: {"a": 1}) == {"a": 1}
    assert once(path, lambda: pytest.fail("made again")) == {"a": 1}
    share([path], lambda i: pytest.fail("made again"))


def test_a_failure_is_raised_and_its_piece_can_be_taken_again(tmp_path: Path) -> None:
    def fail(i: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        share([tmp_path / "a"], fail)
    share([tmp_path / "a"], lambda i: (tmp_path / "a").touch())
