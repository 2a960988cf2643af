"""Which files a folder was written with, and whether they are still what was written.

Every file's size, SHA-256 and time of change are recorded when the folder is finished. Hashing all
of it costs two seconds a gigabyte on one slow core, which is little beside making a gigabyte. To
look at it again is cheap: sizes are compared always, and bytes only where a file's time of change
is another one, as after a copy or a write. What a failing disk changes under an old time is not
found.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

from distill.files import file_sha256

HASHING_THREADS = 8
"""hashlib lets go of the interpreter's lock, so several files are hashed at once."""


class Written(TypedDict):
    """What is recorded of a file; modified is in nanoseconds."""

    bytes: int
    sha256: str
    modified: int


def record(folder: Path, without: Sequence[str] = ()) -> dict[str, Written]:
    """Each file below the folder by its relative name, apart from locks.

    without: names of files and folders directly in `folder` that are left out.
    """
    names = list(_names(folder, without))
    with ThreadPoolExecutor(_threads()) as pool:
        hashes = list(pool.map(lambda name: file_sha256(folder / name), names))
    found: dict[str, Written] = {}
    for name, sha256 in zip(names, hashes, strict=True):
        status = (folder / name).stat()
        found[name] = {
            "bytes": status.st_size,
            "sha256": sha256,
            "modified": status.st_mtime_ns,
        }
    return found


def damage(folder: Path, written: Mapping[str, Written], *, hashes: bool = True) -> dict[str, str]:
    """What is wrong with each file that is not as it was written; empty for a whole folder.

    hashes: also read the files that have their size and another time of change.
    """
    found: dict[str, str] = {}
    touched: list[str] = []
    for name, was in written.items():
        path = folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif (size := path.stat().st_size) != was["bytes"]:
            found[name] = f"has {size} of {was['bytes']} bytes"
        elif path.stat().st_mtime_ns != was["modified"]:
            touched.append(name)
    if hashes:
        with ThreadPoolExecutor(_threads()) as pool:
            sums = list(pool.map(lambda name: file_sha256(folder / name), touched))
        for name, sha256 in zip(touched, sums, strict=True):
            if sha256 != written[name]["sha256"]:
                found[name] = "holds other bytes than were written"
    return found


def restamped(folder: Path, written: Mapping[str, Written]) -> dict[str, Written]:
    """The record of a whole folder with the times of change that its files have now."""
    return {
        name: {**was, "modified": (folder / name).stat().st_mtime_ns}
        for name, was in written.items()
    }


def _names(folder: Path, without: Sequence[str]) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and path.suffix != ".lock" and name.parts[0] not in without:
            yield name.as_posix()


def _threads() -> int:
    return min(HASHING_THREADS, os.cpu_count() or 1)
