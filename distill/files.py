"""Writing that a kill cannot spoil: under a temporary name, flushed to disk, then renamed.

Every file and folder that another process or a later run reads is written through here.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError

if TYPE_CHECKING:
    import pyarrow


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well, it becomes `path`.

    The temporary name is this process's own, so that two writers of one file do not meet. When the
    block raises, nothing is left and `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        flush(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    flush(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder beside `path`; when the block ends well, it replaces `path`.

    Its files get the modes that the umask allows. A folder that is already at `path` is moved
    aside last and removed after that, so a whole one is there throughout. When the block raises,
    nothing is left and `path` is as it was.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    previous = path.with_name(f".{path.name}.{os.getpid()}.previous")
    for stale in (partial, previous):
        shutil.rmtree(stale, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        _open_to_others(partial)
        flush_tree(partial)
        if path.exists():
            path.replace(previous)
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    flush(path.parent)
    shutil.rmtree(previous, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON, whole or not at all; what JSON has no form for is written as its text."""
    write_text(path, json.dumps(value, indent=2, default=str) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file in UTF-8.

    Raises:
        UserError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged ({error}): delete it, or put the whole file back"
        ) from error


def read_parquet(path: Path) -> "pyarrow.Table":
    """The table of a Parquet file.

    Raises:
        UserError: the file is damaged.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(
            f"{path} is damaged ({str(error).partition(chr(10))[0]}): delete it, or put the whole "
            "file back"
        ) from error


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal; the file is not held in memory."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(root: Path, paths: Iterable[Path]) -> str:
    """SHA-256 over names below `root` and bytes of files, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode() + b"\0")
        digest.update(bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()


def discard(folder: Path) -> None:
    """Remove a folder, if there is one; a kill on the way leaves nothing under its name."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.{os.getpid()}.discarded")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.replace(doomed)
        shutil.rmtree(doomed)


def flush(path: Path) -> None:
    """Wait until a file's data, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(folder: Path) -> None:
    """Wait until everything in a folder is on disk."""
    for path in folder.rglob("*"):
        if path.is_file() or path.is_dir():
            flush(path)
    flush(folder)


def _open_to_others(folder: Path) -> None:
    """Give files the modes that the umask allows: safetensors writes 0600, no server's to read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~umask)
