"""The proof that two models mean the same token by the same id. No torch.

Only ids matter: text is cut into tokens by the target's tokenizer alone, so merges and patterns of
the draft's are never used. Rules:

- A head may have more rows than the tokenizer has ids (padding): no tokens, never shared.
- The shared ids are 0 .. size-1, on which both tokenizers name the same string; the first
  difference is refused.
- One side may go on past the other with extra tokens. The draft's extras are masked out of q. The
  target's extras are masked out of p too, so only *special* tokens that generation does not need
  may be extra there: an EOS, a token the chat template writes, or ordinary text is refused.
"""

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from distill.errors import UserError
from distill.models.folder import chat_template, text_setting, tokenizer_file
from distill.models.target import eos_token_ids


@dataclass(frozen=True)
class Vocabulary:
    """size: number of real ids common to target and draft; logits are sliced to [..., :size]."""

    size: int


def shared_vocabulary(target_folder: Path, draft_folder: Path | None) -> Vocabulary:
    """Compare id by id; a draft made from the target (None) has its tokenizer. UserError: above."""
    target = _Tokens(target_folder)
    if draft_folder is None:
        return Vocabulary(target.size)
    draft = _Tokens(draft_folder)
    shared = min(target.size, draft.size)
    pairs = zip_longest(target.strings[:shared], draft.strings[:shared])
    for index, (ours, theirs) in enumerate(pairs):
        if ours != theirs:
            raise UserError(
                f"the draft's tokenizer differs from the target's first at id {index}: {theirs!r} "
                f"where the target has {ours!r}: choose a draft of the target's family, or let one "
                "be made (draft.init=svd)."
            )
    for index in range(shared, target.size):
        _check_extra(target, index)
    return Vocabulary(shared)


def _check_extra(target: "_Tokens", index: int) -> None:
    string = target.strings[index]
    if string is None:
        return
    if index in eos_token_ids(target.folder):
        _refuse_extra(index, string, "ends the target's text")
    if string in (chat_template(target.folder) or ""):
        _refuse_extra(index, string, "is written by the target's chat template")
    if index not in target.special:
        _refuse_extra(index, string, "is ordinary text")


def _refuse_extra(index: int, string: str, why: str) -> NoReturn:
    raise UserError(
        f"the draft has no token {index} ({string!r}), which {why}: choose a draft with the "
        "target's whole tokenizer, or let one be made (draft.init=svd)."
    )


class _Tokens:
    """Strings by id, cut where the model's head ends; None where no token has the id."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"{folder} has no tokenizer.json: write it with "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
            )
        tokenizer = tokenizer_file(folder)
        ids = tokenizer.get_vocab(with_added_tokens=True)
        rows = text_setting(folder, "vocab_size")
        if not ids or (rows is not None and (type(rows) is not int or rows < 1)):
            raise UserError(
                f"{folder} has {len(ids)} tokens and vocab_size={rows!r} in its config.json: fetch "
                "the model again."
            )
        size = max(ids.values()) + 1
        self.folder = folder
        self.size = size if rows is None else min(size, rows)
        self.strings: list[str | None] = [None] * self.size
        for string, index in ids.items():
            if index < self.size:
                self.strings[index] = string
        added = tokenizer.get_added_tokens_decoder()
        self.special = {index for index, token in added.items() if token.special}
