"""A Hugging Face model folder on disk: what is in it, and writing one whole or not at all.

No torch here: these run before any model loads.
"""

import json
import os
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distill.errors import UserError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the file's object, or {} where there is no such file. UserError if it isn't JSON."""
    path = folder / name
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): fetch the model again.") from error


def text_setting(folder: Path, *names: str) -> Any:
    """Return the first of `names` that config.json sets, a composite model's text part first."""
    config = read_json(folder, "config.json")
    for part in (config.get("text_config") or {}, config):
        for name in names:
            if part.get(name) is not None:
                return part[name]
    return None


def safetensors_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of every stored tensor, from the files' headers alone.

    Format: 8 bytes little-endian header length, then the JSON header (safetensors README).
    """
    shapes: dict[str, list[int]] = {}
    for path in safetensors_files(folder):
        with path.open("rb") as file:
            try:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length))
            except (struct.error, ValueError, OverflowError, MemoryError) as error:
                raise UserError(
                    f"{path} is not a whole safetensors file: fetch it again."
                ) from error
        header.pop("__metadata__", None)
        shapes |= {name: entry["shape"] for name, entry in header.items()}
    return shapes


def chat_template(folder: Path) -> str | None:
    """Return the default chat template, from its own file or from tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = read_json(folder, name).get("chat_template")
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if template is not None:
            return template
    return None


def copy_tokenizer(source: Path, destination: Path) -> None:
    """Copy the tokenizer and chat template byte for byte, so that both hash alike."""
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copyfile(source / name, destination / name)
    if (source / "additional_chat_templates").is_dir():
        shutil.copytree(
            source / "additional_chat_templates", destination / "additional_chat_templates"
        )


@contextmanager
def commit_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty partial folder; rename it to `folder` when the block ends, drop it on error.

    A kill leaves only a hidden `.NAME.PID.partial`, which nothing reads. An existing `folder` is
    moved aside first and removed last, so a whole one exists under one of the two names throughout.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        _share(partial)
        previous = folder.with_name(f".{folder.name}.{os.getpid()}.previous")
        if folder.exists():
            folder.rename(previous)
        partial.rename(folder)
        shutil.rmtree(previous, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _share(folder: Path) -> None:
    """Give files the modes that the umask allows: safetensors writes 0600, no server's to read."""
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(0o666 & ~umask)
