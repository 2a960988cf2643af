"""Racing: a candidate that can no longer win stops decoding; the rest go on to more prompts."""

from collections.abc import Sequence

from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.select import tabulate
from distill.evaluate.speed import Entrants
from distill.evaluate.statistics import Bootstrap

FEWEST_UNITS = 5
"""No arm is dropped on fewer timed batches."""


def race(arms: Sequence[Arm], bootstrap: Bootstrap) -> Entrants:
    """Entrants for `measure`: arms whose upper bound of speedup reaches the best lower bound.

    Decided from the rows alone, so that a resumed evaluation drops the same arms.
    """

    def entrants(rows: list[Measurement]) -> list[Arm]:
        left = [arm for arm in arms if _units(rows, arm) == _units(rows, PLAIN_ARM)]
        if len(_units(rows, PLAIN_ARM)) < FEWEST_UNITS:
            return left
        table = tabulate([row for row in rows if row.arm in {PLAIN_ARM, *left}], bootstrap)
        lead = max(line.speedup.low for line in table)
        alive = {line.arm for line in table if line.speedup.high >= lead}
        return [arm for arm in left if arm in alive]

    return entrants


def share_of_passes(rows: Sequence[Measurement], arms: Sequence[Arm]) -> float:
    """Target passes spent, as a share of what every arm over every prompt would have cost.

    An arm that left is taken to have gone on at its own passes per timed batch.
    """
    spent = whole = 0.0
    units = len(_units(rows, PLAIN_ARM))
    for arm in (PLAIN_ARM, *arms):
        passes = sum(row.target_passes for row in rows if row.arm == arm)
        spent += passes
        whole += passes * units / max(len(_units(rows, arm)), 1)
    return spent / whole


def _units(rows: Sequence[Measurement], arm: Arm) -> set[str]:
    return {row.unit for row in rows if row.arm == arm}
