"""Numbered pieces of work that are made once, found again after a kill and shared by ranks.

Ranks share through files alone: no process group, so a rank may be slow, late or absent.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.files import write_json
from distill.locks import locked, try_lock
from distill.ranks import is_rank_zero

POLL_SECONDS = 0.2
CLOSED = "closed"
"""Rank zero leaves this name when it goes: whoever comes later finds the work done."""


class ClosedError(Exception):
    """Rank zero has left the folder: its work is done, or it failed."""


def numbered(folder: Path, count: int, suffix: str) -> list[Path]:
    """Places of `count` pieces in `folder`, which is made: `00000.SUFFIX` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / f"{number:05d}.{suffix}" for number in range(count)]


def once(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON value at `path`: the first rank that comes makes it, the others wait and read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock"), f"making {path.name}"):
        if not path.exists():
            write_json(path, make())
    return json.loads(path.read_text(encoding="utf-8"))


def share(paths: Sequence[Path], make: Callable[[int], None]) -> None:
    """Return when all `paths` are there. make(i) writes paths[i] whole; one rank makes it.

    A rank takes what no other is at, in order. The lock of a rank that was killed falls with its
    process.
    """
    while missing := [i for i, path in enumerate(paths) if not path.exists()]:
        if not sum(_take(paths[i], make, i) for i in missing):
            time.sleep(POLL_SECONDS)


@contextmanager
def working(folder: Path) -> Iterator[None]:
    """Rank zero leaves last: after it the folder is renamed, and the others still read it.

    Rank zero makes the folder and another rank never does.

    Raises:
        ClosedError: rank zero has left already, or has not come yet.
    """
    if is_rank_zero():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CLOSED).unlink(missing_ok=True)
        try:
            yield
        except BaseException:
            (folder / CLOSED).touch()
            raise
        _close(folder)
        return
    try:
        lock = try_lock(folder / f"rank-{platform.node()}-{os.getpid()}.lock")
    except FileNotFoundError as error:
        raise ClosedError from error
    assert lock is not None, "the lock's name is this process's own"
    try:
        if (folder / CLOSED).exists():
            raise ClosedError
        yield
    finally:
        lock.release()


def _close(folder: Path) -> None:
    """Let nobody in any more, then wait for those who are in."""
    (folder / CLOSED).touch()
    for path in sorted(folder.glob("rank-*.lock")):
        with locked(path, "reading the work that rank zero has done"):
            pass


def _take(path: Path, make: Callable[[int], None], index: int) -> bool:
    """Make the piece unless it is there or another rank is at it; whether it was made here."""
    if path.exists():
        return False
    lock = try_lock(path.with_suffix(".lock"))
    if lock is None:
        return False
    try:
        if path.exists():
            return False
        make(index)
        return True
    finally:
        lock.release()
