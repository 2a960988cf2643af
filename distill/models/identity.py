"""Which model exactly: hashes that say whether two artifacts were made from the same one."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.files import write_json
from distill.models.config import ModelConfig
from distill.models.folder import (
    TOKENIZER_FILES,
    chat_template,
    model_json,
    safetensors_files,
    tensor_shapes,
)

INCIDENTAL = ("transformers_version", "_name_or_path", "torch_dtype", "dtype")
"""Keys of config.json: who wrote it, from where, and in which dtype, which the weights tell."""
OF_WRITER = ("name_or_path", "_name_or_path", "transformers_version", "is_local")
"""Keys of tokenizer_config.json that say who wrote it, and from where."""
OF_TEMPLATE = ("chat_template.jinja", "chat_template.json")


@dataclass(frozen=True)
class ModelIdentity:
    """parameters: stored elements (a tied head once). Hashes are hex.

    sha256: of what the model computes, its weights and its architecture; for fingerprints.
    tokenizer_sha256: of all its tokenizer's files. template_sha256: of the template with its flags.
    template_flags: `chat_template_kwargs` in words, such as `enable_thinking=false`; empty: none.
    """

    id: str
    revision: str | None
    sha256: str
    weights_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    parameters: int
    template_flags: str = ""


def identify(folder: Path, model: ModelConfig, cache: Path | None = None) -> ModelIdentity:
    """Hash the folder; with `cache`, weights only when a name, size or mtime has changed."""
    kwargs = getattr(model, "chat_template_kwargs", None) or {}
    weights = weights_sha256(folder, cache)
    return ModelIdentity(
        id=model.id,
        revision=model.revision,
        sha256=hashlib.sha256(f"{weights} {config_sha256(folder)}".encode()).hexdigest(),
        weights_sha256=weights,
        tokenizer_sha256=tokenizer_sha256(folder),
        template_sha256=template_sha256(folder, kwargs),
        parameters=sum(math.prod(shape) for shape in tensor_shapes(folder).values()),
        template_flags=", ".join(f"{k}={json.dumps(v)}" for k, v in sorted(kwargs.items())),
    )


def weights_sha256(folder: Path, cache: Path | None = None) -> str:
    """SHA-256 over the bytes of all safetensors files, in the order of their names."""
    files = safetensors_files(folder)
    stamp = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    note = None if cache is None else cache.expanduser() / "hashes" / f"{place}.json"
    known = {} if note is None else model_json(note.parent, note.name)
    if known.get("files") == stamp:
        return known["sha256"]
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(1 << 22):
                digest.update(block)
    if note is not None:
        note.parent.mkdir(parents=True, exist_ok=True)
        write_json(note, {"files": stamp, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def config_sha256(folder: Path) -> str:
    """Hash config.json as far as it decides what the weights compute: rope_theta, tied heads."""
    text = json.dumps(_computing(model_json(folder, "config.json")), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def tokenizer_sha256(folder: Path) -> str:
    """Hash every file that decides how text becomes ids, end tokens among them; not the template.

    Of tokenizer_config.json what counts is its values, not who wrote it or in which order.
    """
    digest = hashlib.sha256()
    for name in TOKENIZER_FILES:
        if name in OF_TEMPLATE or not (folder / name).is_file():
            continue
        if name == "tokenizer_config.json":
            config = model_json(folder, name)
            kept = {k: v for k, v in config.items() if k not in (*OF_WRITER, "chat_template")}
            content = json.dumps(kept, sort_keys=True).encode()
        else:
            content = (folder / name).read_bytes()
        digest.update(f"{name} {hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def template_sha256(folder: Path, chat_template_kwargs: Mapping[str, Any]) -> str:
    """Hash what decides how a conversation becomes text: the template and its mode flags."""
    rendered = json.dumps([chat_template(folder), dict(chat_template_kwargs)], sort_keys=True)
    return hashlib.sha256(rendered.encode()).hexdigest()


def _computing(config: Any) -> Any:
    """A config, and those of its parts, without what another writer or place would change."""
    if not isinstance(config, dict):
        return config
    return {key: _computing(value) for key, value in config.items() if key not in INCIDENTAL}
