"""Measurements pooled: rates of arms, and the champion within each domain or context bucket."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from distill.evaluate.independence import independent_units
from distill.evaluate.intervals import LOG, LOGIT, Interval, Scale
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Sums, pooled_ratio, times_as_fast

Seconds = Callable[[Measurement], float]


def decode_seconds(row: Measurement) -> float:
    """Of decoding alone."""
    return row.decode_seconds


def end_to_end_seconds(row: Measurement) -> float:
    """Of what a user waits for: the prompt's pass and decoding."""
    return row.prefill_seconds + row.decode_seconds


def over_independent_units(rows: Iterable[Measurement]) -> list[Measurement]:
    """The rows in the order of their keys, each with the independent unit that it belongs to.

    Batches that hold windows of one file, or turns of one conversation, are one unit.
    """
    ordered = sorted(rows, key=lambda row: row.key)  # sums of floats depend on their order
    held: dict[str, set[str]] = {}
    for row in ordered:
        held.setdefault(row.unit, set()).add(row.source)
    names = independent_units(held)
    return [replace(row, unit=names[row.unit]) for row in ordered]


def per_token(rows: Iterable[Measurement], seconds: Seconds) -> Sums:
    """Seconds per committed token, by unit."""
    return Sums.of(rows, lambda row: row.unit, seconds, lambda row: row.committed)


def speedups(
    plain: Sequence[Measurement],
    arms: Sequence[Sequence[Measurement]],
    seconds: Seconds,
    floors: int = 0,
) -> list[Interval]:
    """Time per token of plain decoding over each arm's; the intervals hold for all arms at once.

    Times are taken per token because sampled lengths differ between the arms.
    """
    return times_as_fast(
        per_token(plain, seconds), [per_token(rows, seconds) for rows in arms], floors
    )


def over_prompts(
    rows: Sequence[Measurement], numerator: str, denominator: str, scale: Scale = LOG
) -> Interval:
    """Σ numerator / Σ denominator, with its interval over what the prompts were cut from."""
    sums = Sums.of(
        rows,
        lambda row: row.source,
        lambda row: getattr(row, numerator),
        lambda row: getattr(row, denominator),
    )
    return pooled_ratio(sums, scale)


def alpha(rows: Sequence[Measurement]) -> Interval:
    """Σ min(p, q) over the tested tokens."""
    return over_prompts(rows, "alpha_sum", "tested", LOGIT)


def ratio(rows: Sequence[Measurement], numerator: str, denominator: str) -> float:
    """Σ numerator / Σ denominator; NaN where the denominator is 0."""
    total = sum(getattr(row, denominator) for row in rows)
    return sum(getattr(row, numerator) for row in rows) / total if total else float("nan")


@dataclass(frozen=True)
class Part:
    """An arm within one domain or context-length bucket. prompts counts turns.

    speedup is of decoding alone, speedup_end_to_end includes the prompts' passes. The intervals
    hold although the arm was chosen; of domains with floors, they hold for all of these at once.
    """

    name: str
    prompts: int
    units: int
    alpha: Interval
    speedup: Interval
    speedup_end_to_end: Interval
    tokens_per_pass: float


def parts(
    rows: Sequence[Measurement],
    arm: Arm,
    name: Callable[[Measurement], str],
    floors: int = 0,
) -> list[Part]:
    """The arm against plain decoding, apart for each `name`; those of shorter prompts first.

    rows: of all arms among which this one was chosen, with independent units. A batch over several
    parts gives each an equal share of its time for each of its prompts. floors: how many of the
    parts have one.
    """
    by_part: dict[str, list[Measurement]] = {}
    for row in rows:
        by_part.setdefault(name(row), []).append(row)
    shortest = {part: min(row.prompt_tokens for row in found) for part, found in by_part.items()}
    return [
        _part(part, by_part[part], arm, floors)
        for part in sorted(by_part, key=lambda part: (shortest[part], part))
    ]


def by_arm(rows: Iterable[Measurement]) -> dict[Arm, list[Measurement]]:
    """Rows of each arm, plain decoding among them."""
    found: dict[Arm, list[Measurement]] = {}
    for row in rows:
        found.setdefault(row.arm, []).append(row)
    return found


def _part(name: str, rows: list[Measurement], arm: Arm, floors: int) -> Part:
    arms = by_arm(rows)
    plain, mine = arms.pop(PLAIN_ARM), arms[arm]
    place = list(arms).index(arm)
    every = list(arms.values())
    return Part(
        name=name,
        prompts=len({(row.prompt_id, row.turn) for row in mine}),
        units=len({row.unit for row in mine}),
        alpha=alpha(mine),
        speedup=speedups(plain, every, decode_seconds, floors)[place],
        speedup_end_to_end=speedups(plain, every, end_to_end_seconds, floors)[place],
        tokens_per_pass=ratio(mine, "committed", "target_passes"),
    )
