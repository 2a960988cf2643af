"""What is in a Hugging Face model folder on disk. No torch: asked before any model loads."""

import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.models.config import EAGLE3

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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


def model_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in the folder's file `name`, or {} where there is no such file.

    Raises:
        UserError: the file is no JSON object.
    """
    path = folder / name
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): fetch the model again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object: fetch the model again.")
    return found


def tokenizer_file(folder: Path) -> "Tokenizer":
    """The tokenizer of tokenizer.json.

    Raises:
        UserError: the file is damaged.
    """
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{path} is no tokenizer ({error}): fetch the model again.") from error


def text_setting(folder: Path, *names: str) -> Any:
    """Return the first of `names` that config.json sets, a composite model's text part first."""
    config = model_json(folder, "config.json")
    inner = config.get("text_config") or {}
    if not isinstance(inner, dict):
        raise UserError(f"{folder}/config.json: text_config is no object: fetch the model again.")
    for part in (inner, config):
        for name in names:
            if part.get(name) is not None:
                return part[name]
    return None


def safetensors_files(folder: Path) -> list[Path]:
    """The files of the weights, in the order of their names."""
    return sorted(folder.glob("*.safetensors"))


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name -> shape of every stored tensor, from the files' headers alone.

    Raises:
        UserError: a file is cut short.
    """
    shapes: dict[str, list[int]] = {}
    for path in safetensors_files(folder):
        shapes |= {name: entry["shape"] for name, entry in safetensors_header(path).items()}
    return shapes


def safetensors_header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of each tensor, if it is as long as it says.

    Format: 8 bytes little-endian header length, the JSON header, then the bytes of the tensors
    (safetensors README).

    Raises:
        UserError: it is cut short, or is none.
    """
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, size)))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (struct.error, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a whole safetensors file: fetch it again.") from error
    if size != 8 + length + end:
        raise UserError(
            f"{path} is not a whole safetensors file ({size} of {8 + length + end} bytes): "
            "fetch it again."
        )
    return header


def chat_template(folder: Path) -> str | None:
    """Return the default chat template, from its own file or from tokenizer_config.json."""
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = model_json(folder, name).get("chat_template")
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


def folder_is_head(folder: Path) -> bool:
    """Whether the draft in a folder is a head that reads the target's hidden states."""
    return EAGLE3 in (model_json(folder, "config.json").get("architectures") or ())
