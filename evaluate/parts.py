"""An arm against plain decoding within each domain or context-length bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distill.evaluate.pooling import decode_seconds, over_prompts, ratio, same_units, speedup
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Bootstrap, Interval


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
        speedup=speedup(same_units(plain, rows), rows, decode_seconds, bootstrap),
        tokens_per_pass=ratio(rows, "committed", "target_passes"),
    )
