import json
import os
import shutil
from pathlib import Path

import pytest

from distill.files import whole_file, whole_folder, write_json


def half_written(writing) -> None:
    with writing as partial:
        (partial / "three" if partial.is_dir() else partial).write_text("half")
        raise RuntimeError


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError):
        half_written(whole_file(path))
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for text in ("one", "two"):
        with whole_folder(path) as partial:
            (partial / text).write_text(text)
    with pytest.raises(RuntimeError):
        half_written(whole_folder(path))
    assert [one.name for one in path.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_can_be_read_by_others(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "made") as partial:
        (partial / "file").touch()
        (partial / "file").chmod(0o600)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "made" / "file").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_kill_while_a_folder_is_replaced_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is old is deleted only when the new is in place."""
    path, seen = tmp_path / "a", []
    with whole_folder(path) as partial:
        (partial / "one").touch()
    rmtree = shutil.rmtree

    def noted(folder: Path, **options: bool) -> None:
        if folder.exists():
            seen.append([one.name for one in path.iterdir()])
        rmtree(folder, **options)

    monkeypatch.setattr("shutil.rmtree", noted)
    with whole_folder(path) as partial:
        (partial / "two").touch()
    assert seen == [["two"]]


def test_what_is_written_is_flushed_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr("os.fsync", lambda _: seen.append("flush"))
    replace = Path.replace

    def noted(self: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    write_json(tmp_path / "a.json", 1)
    assert seen == ["flush", "rename", "flush"]
