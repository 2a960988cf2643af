"""Ratios of sums pooled over prompts, and their bootstrap intervals.

Shapes: U units (what is resampled), C columns, R resamples.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distill.errors import UserError

Array = NDArray[np.float64]
Row = TypeVar("Row")

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A pooled value and its 95% percentile-bootstrap bounds. NaN where nothing was counted."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Bootstrap:
    """How intervals are made. The same seed and units give the same resamples."""

    samples: int = 2000
    seed: int = 0


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


def pooled_ratio(sums: Sums, bootstrap: Bootstrap) -> Interval:
    """Σ numerator / Σ denominator over all units, with its interval over units."""
    return _interval(sums.columns(), lambda s: _divide(s[..., 0], s[..., 1]), bootstrap)


def paired_ratio(a: Sums, b: Sums, bootstrap: Bootstrap) -> Interval:
    """(ratio of a) / (ratio of b), arms resampled together. UserError if their units differ."""
    return paired([a, b], lambda ratios: _divide(ratios[0], ratios[1]), bootstrap)


def paired_difference(a: Sums, b: Sums, bootstrap: Bootstrap) -> Interval:
    """(ratio of a) − (ratio of b), arms resampled together. UserError if their units differ."""
    return paired([a, b], lambda ratios: ratios[0] - ratios[1], bootstrap)


def paired(
    arms: Sequence[Sums], statistic: Callable[[list[Array]], Array], bootstrap: Bootstrap
) -> Interval:
    """`statistic` of the arms' ratios, arms resampled together. UserError if their units differ."""

    def of_ratios(sums: Array) -> Array:
        return statistic(
            [_divide(sums[..., 2 * i], sums[..., 2 * i + 1]) for i in range(len(arms))]
        )

    return _interval(_paired_columns(arms), of_ratios, bootstrap)


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


def _paired_columns(arms: Sequence[Sums]) -> Array:
    """[U, 2 · arms], in the order of the sorted unit names."""
    first, *others = (arm.by_unit.keys() for arm in arms)
    for units in others:
        if odd := sorted(first ^ units):
            raise UserError(
                f"a paired comparison needs the same prompts in all arms; {odd[0]!r} and "
                f"{len(odd) - 1} more are in one only: measure all arms on the same prompts"
            )
    return np.concatenate([arm.columns() for arm in arms], axis=1)


def _interval(
    columns: Array, statistic: Callable[[Array], Array], bootstrap: Bootstrap
) -> Interval:
    """Percentile bootstrap: statistic maps sums [..., C] to values [...]; columns is [U, C]."""
    if not len(columns):
        raise UserError("no measurement to pool: give at least one prompt")
    units = len(columns)
    generator = np.random.default_rng(bootstrap.seed)
    counts = generator.multinomial(units, np.full(units, 1 / units), size=bootstrap.samples)
    values = statistic(counts @ columns)
    values = values[np.isfinite(values)]  # a resample without a denominator says nothing
    if not len(values):
        return Interval(float("nan"), float("nan"), float("nan"))
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(statistic(columns.sum(axis=0))), float(low), float(high))


def _divide(numerator: Array, denominator: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.true_divide(numerator, denominator))
