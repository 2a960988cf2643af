"""A GGUF file as a Hugging Face folder, without losing a bit of it. No torch before it converts."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError
from distill.files import whole_folder, write_text
from distill.locks import locked
from distill.models.folder import copy_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

CONVERSION = 1
"""Part of the cache name: a mended conversion must not meet the old one's folder."""

# `tokenizer.ggml.pre` values by how text is cut before merging. transformers knows some others and
# sets their pattern itself; what it doesn't know it leaves as GPT-2's, silently. SmolLM's merges
# were learned with every digit cut off first: "\n    1" is 2 tokens, and 3 under GPT-2's pattern.
_LIKE_GPT2 = {"gpt-2", "default"}
_DIGITS_FIRST = {"smollm", "starcoder", "refact", "command-r", "codeshell"}


def gguf_folder(file: Path, cache: Path) -> Path:
    """Return the folder of a GGUF file in `cache`, converting it first where needed.

    Raises:
        UserError: no such file, or no GGUF in it.
    """
    if not file.is_file():
        raise UserError(f"GGUF file {file} does not exist: check the path.")
    with file.open("rb") as opened:
        magic = opened.read(4)
    if magic != b"GGUF":
        raise UserError(f"{file} is not a GGUF file: give one, or set source=folder for a folder.")
    status = file.stat()
    key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns}"
    return convert_once(file, f"gguf-{hashlib.sha256(key.encode()).hexdigest()[:12]}", cache)


def convert_once(file: Path, name: str, cache: Path) -> Path:
    """Convert a GGUF file to `cache/NAME-cN` unless that is there; N: the conversion's version."""
    folder = cache / f"{name}-c{CONVERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{folder.name}.lock", f"converting {file.name}"):
        if not folder.is_dir():
            with whole_folder(folder) as partial:
                convert_gguf(file, partial)
    return folder


def convert_gguf(file: Path, folder: Path) -> None:
    """Write config, safetensors, tokenizer and chat template of `file` into the existing `folder`.

    The dtype is the narrowest that holds every dequantised weight exactly (`lossless_dtype`), so
    that a float32 target is the GGUF's own function; bfloat16 for speed is chosen when loading.
    Tokenizer files lying beside the GGUF are taken as they are, instead of the GGUF's own.
    """
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        trust_remote_code=False,
    )
    model.to(lossless_dtype(model)).save_pretrained(folder)  # pyright: ignore[reportArgumentType]
    if (file.parent / "tokenizer.json").exists():
        copy_tokenizer(file.parent, folder)
    else:
        _convert_tokenizer(file, folder)


def lossless_dtype(model: "PreTrainedModel") -> "torch.dtype":
    """Return bfloat16, float16 or float32: the first into which every weight converts and back."""
    import torch

    for dtype in (torch.bfloat16, torch.float16):
        if all(torch.equal(w.to(dtype).to(w.dtype), w) for w in model.parameters()):
            return dtype
    return torch.float32


def _convert_tokenizer(file: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, trust_remote_code=False
    ).save_pretrained(folder)
    if not (folder / "tokenizer.json").exists():
        _refuse_tokenizer(file, "has no fast form")
    path = folder / "tokenizer.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    mended = mend_pre_tokenizer(written, _pre_tokenizer_name(file), file)
    write_text(path, json.dumps(mended, ensure_ascii=False, indent=2))


def mend_pre_tokenizer(tokenizer: dict, name: str | None, file: Path) -> dict:
    """Return tokenizer.json with the split that `name` stands for.

    Raises:
        UserError: nothing is known of that name.
    """
    split = tokenizer.get("pre_tokenizer") or {}
    if split.get("type") != "ByteLevel" or name is None or name in _LIKE_GPT2:
        return tokenizer
    if name not in _DIGITS_FIRST:
        _refuse_tokenizer(file, f"splits text as {name!r}, which is unknown here")
    digits = {"type": "Digits", "individual_digits": True}
    return tokenizer | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, split]}}


def _pre_tokenizer_name(file: Path) -> str | None:
    from gguf import GGUFReader

    field = GGUFReader(file).get_field("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())


def _refuse_tokenizer(file: Path, why: str) -> None:
    raise UserError(
        f"the tokenizer of {file.name} {why}: put the model's tokenizer.json and "
        "tokenizer_config.json beside the GGUF file."
    )
