"""The target: loaded, frozen, and what its files say about it. torch is imported when one loads."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.models.code import allowed
from distill.models.folder import model_json, text_setting, tokenizer_file

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
DISK = 5e8
"""Bytes that a usual disk gives in a second."""
WORTH_SAYING = 10 * DISK
"""Bytes of weights from which on loading is announced: it takes ten seconds."""


def load_target(
    folder: Path,
    *,
    dtype: "torch.dtype",
    device: "torch.device | str",
    device_map: str | None = None,
) -> "PreTrainedModel":
    """Load in eval mode with no parameter requiring a gradient.

    `device_map` ("auto": one copy over all visible GPUs) takes the place of `device`.

    Raises:
        UserError: weights that do not fit the config.
    """
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if size > WORTH_SAYING:
        log.info("loading the target: %.0f GB, from a usual disk %.0f s", size / 1e9, size / DISK)
    placement = {} if device_map is None else {"device_map": device_map}
    model = load_model(folder, dtype=dtype, **placement)
    model.requires_grad_(False).eval()
    if device_map is None:
        model.to(device)  # pyright: ignore[reportArgumentType]  # the stub wants the bound class
    return model


def load_model(folder: Path, **options: Any) -> "PreTrainedModel":
    """Load a causal language model.

    Raises:
        UserError: weights are missing, which Hugging Face would draw at random.
    """
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, trust_remote_code=allowed(folder), **options
    )
    model, report = loaded
    if absent := sorted(report["missing_keys"]):
        raise UserError(
            f"{folder} lacks weights that its config.json asks for ({', '.join(absent[:3])}"
            f"{', …' if len(absent) > 3 else ''}): fetch or save the model again."
        )
    return model


def pick_dtype(name: str, device: "torch.device | str") -> "torch.dtype":
    """Return the dtype called `name`; `auto` is bfloat16 where `device` multiplies it natively.

    Raises:
        UserError: an unknown name.
    """
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name in known:
        return known[name]
    if name != "auto":
        raise UserError(f"dtype {name!r} is unknown: use auto, {', '.join(known)}.")
    return torch.bfloat16 if _multiplies_bfloat16(torch.device(device)) else torch.float32


def has_native_bfloat16() -> bool:
    """Whether models on this machine run in bfloat16: on its GPU, or on its CPU without one."""
    import torch

    return _multiplies_bfloat16(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _multiplies_bfloat16(device: "torch.device") -> bool:
    """Emulated bfloat16 is slower than float32, so only native support counts."""
    import torch

    if device.type == "cuda":
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        has = torch.cpu.get_capabilities()
        return any(has.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16", "sve_bf16"))
    return False


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Ids that end the text: generation_config's list, else config's, else the tokenizer's one.

    An empty list says nothing, as none does.

    Raises:
        UserError: none of them names an end.
    """
    stated = model_json(folder, "generation_config.json").get("eos_token_id")
    if stated in (None, []):
        stated = text_setting(folder, "eos_token_id")
    if stated in (None, []):
        stated = _tokenizer_eos(folder)
    if stated is None:
        raise UserError(
            f"{folder} names no EOS token: set eos_token_id in its generation_config.json."
        )
    ids = stated if isinstance(stated, list) else [stated]
    if not all(type(one) is int and one >= 0 for one in ids):
        raise UserError(
            f"{folder} states eos_token_id={stated!r}, which is no token id, nor a list of ids: "
            "mend its generation_config.json or config.json."
        )
    return tuple(ids)


def _tokenizer_eos(folder: Path) -> int | None:
    token = model_json(folder, "tokenizer_config.json").get("eos_token")
    string = token.get("content") if isinstance(token, dict) else token
    if string is None or not (folder / "tokenizer.json").exists():
        return None
    return tokenizer_file(folder).token_to_id(string) if isinstance(string, str) else None


def context_length(folder: Path) -> int:
    """Return the longest sequence in tokens that the model's positions cover.

    Raises:
        UserError: config.json does not say.
    """
    length = text_setting(folder, "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
    if length is None:
        raise UserError(f"{folder}/config.json states no context: add max_position_embeddings.")
    if type(length) is not int or length < 1:
        raise UserError(f"{folder}/config.json states {length!r} as its context: give a number.")
    return length
