"""Sums of measurements and the ratios formed from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Bootstrap, Interval, Sums, paired_ratio, pooled_ratio


def decode_seconds(row: Measurement) -> float:
    return row.decode_seconds


def per_token(rows: Iterable[Measurement], seconds: Callable[[Measurement], float]) -> Sums:
    """Seconds per committed token, by unit."""
    return Sums.of(rows, lambda row: row.unit, seconds, lambda row: row.committed)


def speedup(
    plain: list[Measurement],
    rows: list[Measurement],
    seconds: Callable[[Measurement], float],
    bootstrap: Bootstrap,
) -> Interval:
    """Time per token of plain decoding over the arm's: sampled lengths differ between the two."""
    return paired_ratio(per_token(plain, seconds), per_token(rows, seconds), bootstrap)


def over_prompts(
    rows: list[Measurement], numerator: str, denominator: str, bootstrap: Bootstrap
) -> Interval:
    sums = Sums.of(
        rows,
        lambda row: row.prompt_id,
        lambda row: getattr(row, numerator),
        lambda row: getattr(row, denominator),
    )
    return pooled_ratio(sums, bootstrap)


def ratio(rows: list[Measurement], numerator: str, denominator: str) -> float:
    total = sum(getattr(row, denominator) for row in rows)
    return sum(getattr(row, numerator) for row in rows) / total if total else float("nan")


@dataclass(frozen=True)
class Part:
    """One domain or context-length bucket of an arm. prompts counts turns."""

    name: str
    prompts: int
    units: int
    alpha: Interval
    speedup: Interval
    tokens_per_pass: float


def parts(
    rows: Sequence[Measurement],
    arm: Arm,
    name: Callable[[Measurement], str],
    bootstrap: Bootstrap,
) -> list[Part]:
    """The arm against plain decoding, apart for each `name`; those of shorter prompts first.

    A batch over several parts gives each an equal share of its time for each of its prompts.
    """
    ordered = sorted(rows, key=lambda row: row.key)
    plain = [row for row in ordered if row.arm == PLAIN_ARM]
    mine: dict[str, list[Measurement]] = {}
    for row in (row for row in ordered if row.arm == arm):
        mine.setdefault(name(row), []).append(row)
    shortest = {part: min(row.prompt_tokens for row in found) for part, found in mine.items()}
    return [
        _part(part, mine[part], [row for row in plain if name(row) == part], bootstrap)
        for part in sorted(mine, key=lambda part: (shortest[part], part))
    ]


def _part(
    name: str, rows: list[Measurement], plain: list[Measurement], bootstrap: Bootstrap
) -> Part:
    return Part(
        name=name,
        prompts=len({(row.prompt_id, row.turn) for row in rows}),
        units=len({row.unit for row in rows}),
        alpha=over_prompts(rows, "alpha_sum", "tested", bootstrap),
        speedup=speedup(plain, rows, decode_seconds, bootstrap),
        tokens_per_pass=ratio(rows, "committed", "target_passes"),
    )
