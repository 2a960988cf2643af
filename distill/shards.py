"""Numbered pieces of work that are made once, found again after a kill and shared by ranks.

Ranks share through files alone: no process group, so a rank may be slow, late or absent.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from distill.files import write_json
from distill.ranks import is_rank_zero

POLL_SECONDS = 0.2


def numbered(folder: Path, count: int, suffix: str) -> list[Path]:
    """Places of `count` pieces in `folder`, which is made: `00000.SUFFIX` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    return [folder / f"{number:05d}.{suffix}" for number in range(count)]


def once(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON value at `path`: the first rank that comes makes it, the others wait and read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
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
    """Rank zero leaves last: after it the folder is renamed, and the others still read it."""
    folder.mkdir(parents=True, exist_ok=True)
    if is_rank_zero():
        yield
        for path in sorted(folder.glob("rank-*.lock")):
            with FileLock(path):
                pass
    else:
        with FileLock(folder / f"rank-{socket.gethostname()}-{os.getpid()}.lock"):
            yield


def _take(path: Path, make: Callable[[int], None], index: int) -> bool:
    """Make the piece unless it is there or another rank is at it; whether it was made here."""
    if path.exists():
        return False
    try:
        with FileLock(path.with_suffix(".lock"), timeout=0):
            if path.exists():
                return False
            make(index)
            return True
    except Timeout:
        return False
