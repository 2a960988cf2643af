"""Sums of measurements and the ratios formed from them."""

from collections.abc import Callable, Iterable

from distill.evaluate.records import Measurement
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


def same_units(plain: list[Measurement], rows: list[Measurement]) -> list[Measurement]:
    """An arm that left the race early is compared on the prompts it decoded."""
    units = {row.unit for row in rows}
    return [row for row in plain if row.unit in units]


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
