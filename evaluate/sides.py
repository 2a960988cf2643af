"""A side of a comparison: one evaluation, and what its champion did at a load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distill.evaluate.pooling import decode_seconds, per_token
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Sums

LoadKey = tuple[str, int]
"""Sampling setting and batch size."""


@dataclass(frozen=True)
class Arms:
    """A side's plain and champion rows at a load."""

    arm: Arm
    plain: list[Measurement]
    drafted: list[Measurement]

    @property
    def turns(self) -> set[tuple[str, int]]:
        """All that it decoded there."""
        return {(row.prompt_id, row.turn) for row in self.drafted}

    def units(self) -> dict[str, frozenset[tuple[str, int, int]]]:
        """What each clock timed: conversation, turn and prompt length."""
        found: dict[str, set[tuple[str, int, int]]] = {}
        for row in self.drafted:
            found.setdefault(row.unit, set()).add((row.prompt_id, row.turn, row.prompt_tokens))
        return {unit: frozenset(prompts) for unit, prompts in found.items()}

    def only(self, units: set[str]) -> "Arms":
        kept = ([r for r in rows if r.unit in units] for rows in (self.plain, self.drafted))
        return Arms(self.arm, *kept)

    def alpha(self) -> Sums:
        """By conversation."""
        return Sums.of(
            self.drafted, lambda row: row.prompt_id, lambda row: row.alpha_sum, lambda r: r.tested
        )

    def tokens(self) -> Sums:
        """Committed per target pass, by conversation."""
        return Sums.of(
            self.drafted,
            lambda row: row.prompt_id,
            lambda row: row.committed,
            lambda row: row.target_passes,
        )

    def paces(self) -> list[Sums]:
        """Seconds per token of plain decoding and of the champion, by clock."""
        return [per_token(rows, decode_seconds) for rows in (self.plain, self.drafted)]


@dataclass(frozen=True)
class Side:
    """One evaluation: where it is from, `evaluation.json` and its measurements."""

    name: str
    evaluation: Mapping[str, Any]
    rows: Sequence[Measurement]

    @property
    def loads(self) -> dict[LoadKey, Mapping[str, Any]]:
        return {(load["sampling"], load["batch_size"]): load for load in self.evaluation["loads"]}

    def arms(self, key: LoadKey) -> Arms:
        load = self.loads[key]
        arm = Arm(load["draft"], load["num_draft_tokens"])
        rows = [row for row in self.rows if (row.sampling, row.batch_size) == key]
        rows = sorted(rows, key=lambda row: row.key)  # sums of floats depend on their order
        drafted = [row for row in rows if row.arm == arm]
        units = {row.unit for row in drafted}
        return Arms(arm, [r for r in rows if r.arm == PLAIN_ARM and r.unit in units], drafted)
