"""Loads of an evaluation in words and in groups, and what their champions measured.

All take parts of `evaluation.json` (see `evaluate.outcome`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from distill.evaluate.report.formats import number_of

Record = Mapping[str, Any]


def load_name(load: Record) -> str:
    """A load in words: `greedy, 1 at a time`."""
    return f"{load['sampling']}, {batch_name(load)}"


def batch_name(load: Record) -> str:
    return f"{load['batch_size']} at a time"


def by_sampling(loads: Sequence[Record]) -> dict[str, list[Record]]:
    """Loads by their sampling setting, in the configured order."""
    found: dict[str, list[Record]] = {}
    for load in loads:
        found.setdefault(load["sampling"], []).append(load)
    return found


def champion_arms(evaluation: Record, load: Record) -> list[Record]:
    """The load's champion at every k that was measured, by k."""
    arms = [
        arm
        for arm in evaluation["table"]
        if (arm["sampling"], arm["batch_size"]) == (load["sampling"], load["batch_size"])
        and arm["candidate"] == load["draft"]
    ]
    return sorted(arms, key=lambda arm: arm["num_draft_tokens"])


def by_k(arms: Sequence[Record], what: str) -> str:
    """`k = 1 1.34, k = 2 1.44`: a number, or an interval's value, of every k."""

    def value(arm: Record) -> float:
        found = arm[what]
        return number_of(found["value"] if isinstance(found, Mapping) else found)

    return ", ".join(f"k = {arm['num_draft_tokens']} {value(arm):.2f}" for arm in arms)
