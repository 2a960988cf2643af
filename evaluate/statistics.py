"""Sums of measurements by independent unit, and the intervals of the ratios formed from them.

Shapes: U units (what was drawn independently), A arms.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from distill.errors import UserError
from distill.evaluate.intervals import (
    LINEAR,
    LOG,
    Array,
    Interval,
    Scale,
    Statistic,
    difference,
    interval,
    intervals,
    ratio,
)

Row = TypeVar("Row")


@dataclass
class Sums:
    """One arm of a ratio: Σ numerator / Σ denominator, by unit.

    A unit is what was drawn independently: a prompt, or a batch of prompts that shared one clock.
    Rows of the same unit (its repetitions) are added up, so they never count as fresh evidence.
    """

    by_unit: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, unit: str, numerator: float, denominator: float) -> None:
        n, d = self.by_unit.get(unit, (0.0, 0.0))
        self.by_unit[unit] = (n + numerator, d + denominator)

    def columns(self) -> Array:
        """[U, 2] in the order of the sorted unit names: the order of measuring cannot matter."""
        return np.array([self.by_unit[unit] for unit in sorted(self.by_unit)], dtype=np.float64)

    @classmethod
    def of(
        cls,
        rows: Iterable[Row],
        unit: Callable[[Row], str],
        numerator: Callable[[Row], float],
        denominator: Callable[[Row], float],
    ) -> "Sums":
        sums = cls()
        for row in rows:
            sums.add(unit(row), numerator(row), denominator(row))
        return sums


def pooled_ratio(sums: Sums, scale: Scale = LOG) -> Interval:
    """Σ numerator / Σ denominator over all units, with its interval over units.

    scale: `LOG` for a rate, `LOGIT` for a share.
    """
    return interval(sums.columns(), ratio, scale)


def times_as_fast(plain: Sums, arms: Sequence[Sums], floors: int = 0) -> list[Interval]:
    """(ratio of `plain`) / (ratio of each arm), valid for all arms at once.

    floors: see `intervals`. UserError if the arms' units differ.
    """
    return intervals(paired_columns([plain, *arms]), floors=floors)


def paired_difference(a: Sums, b: Sums) -> Interval:
    """(ratio of a) − (ratio of b), paired over units. UserError if their units differ."""
    return interval(paired_columns([a, b]), difference, LINEAR)


def paired(arms: Sequence[Sums], statistic: Statistic, scale: Scale = LOG) -> Interval:
    """`statistic` of the arms' sums, paired over units. UserError if their units differ."""
    return interval(paired_columns(arms), statistic, scale)


def paired_columns(arms: Sequence[Sums]) -> Array:
    """[U, 2 · A], in the order of the sorted unit names."""
    first, *others = (arm.by_unit.keys() for arm in arms)
    for units in others:
        if odd := sorted(first ^ units):
            raise UserError(
                f"a paired comparison needs the same prompts in all arms; {odd[0]!r} and "
                f"{len(odd) - 1} more are in one only: measure all arms on the same prompts"
            )
    return np.concatenate([arm.columns() for arm in arms], axis=1)


def merge_rows(parts: Iterable[Sequence[Row]], key: Callable[[Row], Hashable]) -> list[Row]:
    """Rows of several ranks or restarts as one list by key. UserError on a key that comes twice."""
    merged: dict[Hashable, Row] = {}
    for part in parts:
        for row in part:
            if (name := key(row)) in merged:
                raise UserError(
                    f"measurement {name} comes twice and would be counted twice: merge each rank's "
                    "and each restart's rows once"
                )
            merged[name] = row
    return [merged[name] for name in sorted(merged, key=repr)]
