"""Splits by a stable hash: the same group goes to the same split on every machine and every run."""

import hashlib
from collections.abc import Iterable

from distill.errors import UserError


def stable_hash(*parts: object) -> int:
    """64 bits of SHA-256; Python's own `hash` of a string changes with every process."""
    text = "\x1f".join(str(part) for part in parts)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


def check_fractions(validation: float, evaluation: float) -> None:
    """Raise a UserError for shares below 0, or that leave nothing for training."""
    if not (validation >= 0 and evaluation >= 0 and validation + evaluation < 1):
        raise UserError(
            f"validation_fraction={validation} and evaluation_fraction={evaluation} must be at "
            "least 0 and together below 1: something has to be left for training."
        )


def assign_splits(groups: Iterable[str], validation: float, evaluation: float) -> dict[str, str]:
    """A split for each group, by where its hash falls in [0, 1).

    A few groups can leave a held-out split empty by chance; then it gets the training group that
    is nearest to it.
    """

    def place(group: str) -> float:
        return stable_hash("split", group) / 2**64

    splits: dict[str, str] = {}
    for group in groups:
        if group not in splits:
            at = place(group)
            held_out = "evaluation" if at < evaluation else "validation"
            splits[group] = held_out if at < evaluation + validation else "train"
    for split, wanted in (("evaluation", evaluation), ("validation", validation)):
        if wanted > 0 and split not in splits.values():
            train = [group for group, given in splits.items() if given == "train"]
            if len(train) > 1:
                splits[min(train, key=lambda group: (place(group), group))] = split
    return splits
