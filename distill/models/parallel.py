"""A parallel draft: a separate draft that guesses k tokens in one pass, behind k − 1 mask tokens.

An et al. 2025, "PARD: Accelerating LLM Inference with Low-Cost Parallel Draft Model Adaptation"
(arXiv 2504.18583). All mask positions share one id, an unused one of the vocabulary, so that its
folder is that of any draft, with one key more. No torch: asked before any model loads.

Shapes: V the target's vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path

from distill.errors import UserError
from distill.models.config import MASK_KEY
from distill.models.folder import chat_template, model_json, text_setting, tokenizer_file
from distill.models.target import eos_token_ids

NAMED = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id")
"""Settings of config.json and generation_config.json whose ids are in use."""


def folder_mask(folder: Path) -> int | None:
    """The mask token of the draft in a folder; None for a draft of one token a pass."""
    return model_json(folder, "config.json").get(MASK_KEY)


def unused_ids(folder: Path) -> list[int]:
    """Ids below `vocab_size` that no text of the target can have, the best mask token first.

    These are rows without a token; then special tokens that neither a setting nor the chat template
    names, those called reserved or unused before the others, and the last of each kind first.
    """
    tokenizer = tokenizer_file(folder)
    names = {number: name for name, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = {n for n, one in tokenizer.get_added_tokens_decoder().items() if one.special}
    rows = text_setting(folder, "vocab_size") or len(names)
    template, named = chat_template(folder) or "", _named_ids(folder)
    free = [
        number
        for number in range(rows)
        if number not in named
        and (number not in names or (number in special and names[number] not in template))
    ]

    def rank(number: int) -> tuple[bool, bool, int]:
        name = names.get(number)
        meant = name is not None and any(word in name for word in ("reserved", "unused"))
        return name is not None, not meant, -number

    return sorted(free, key=rank)


def check_mask(folder: Path, asked: int | None) -> None:
    """Refuse a mask token that is in use, or a vocabulary that has none to give.

    folder: the model whose vocabulary the draft has; only its files are read.
    """
    rows, free = text_setting(folder, "vocab_size"), unused_ids(folder)
    if asked is None and not free:
        raise UserError(
            f"every id of {folder.name} is in use, so that none can be a parallel draft's mask "
            "token: use draft=auto."
        )
    if asked is None or asked in free:
        return
    if not 0 <= asked < rows:
        raise UserError(
            f"draft.mask_token is {asked}, outside the vocabulary of {rows} ids: {_remedy(free)}"
        )
    raise UserError(f"draft.mask_token is {asked}, which is in use: {_remedy(free)}")


def choose_mask(folder: Path, asked: int | None, counts: Sequence[int]) -> int:
    """The id asked for, or else the best unused one; neither may occur in the training rows.

    counts: how often these have each id, [V]. Raises UserError as `check_mask` does.
    """
    check_mask(folder, asked)
    free = [n for n in unused_ids(folder) if n >= len(counts) or not counts[n]]
    if asked is not None and asked not in free:
        raise UserError(
            f"draft.mask_token is {asked}, which occurs {counts[asked]} times in the training "
            f"rows: {_remedy(free)}"
        )
    if not free:
        raise UserError(
            "the training rows have every id that could be a mask token: use draft=auto."
        )
    return free[0] if asked is None else asked


def _named_ids(folder: Path) -> set[int]:
    """Ids that begin, end or pad text."""
    found: set[int | None] = {*eos_token_ids(folder)}
    for file in ("config.json", "generation_config.json"):
        settings = model_json(folder, file)
        for name in NAMED:
            value = settings.get(name)
            found.update(value if isinstance(value, list) else [value])
    tokenizer = tokenizer_file(folder)
    settings = model_json(folder, "tokenizer_config.json")
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found.add(tokenizer.token_to_id(text))
    return {number for number in found if number is not None}


def _remedy(free: Sequence[int]) -> str:
    return f"use {free[0]}, or null for a choice." if free else "no id is free; use draft=auto."
