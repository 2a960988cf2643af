"""Racing: a candidate that can no longer win stops decoding; the rest go on to more prompts."""

from collections.abc import Mapping, Sequence

from distill.evaluate.pooling import decode_seconds, per_token
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.select import fastest, tabulate
from distill.evaluate.speed import Entrants
from distill.evaluate.statistics import Bootstrap, paired_ratio

FIRST_ROUND = 5
"""Timed batches before the first decision; each later round doubles their number."""


def race(arms: Sequence[Arm], bootstrap: Bootstrap) -> Entrants:
    """Entrants for `measure`: the arms that are not surely slower than the leader.

    The leader has the highest lower bound of speedup. An arm leaves when the upper bound of its
    speed over the leader's, paired over the batches that both decoded, is below 1. Decided from
    the rows alone, so that ranks and a resumed evaluation drop the same arms.
    """

    def entrants(rows: list[Measurement]) -> list[Arm]:
        if not rows:
            return list(arms)
        by_arm = _by_arm(rows)
        everywhere = _units(by_arm[PLAIN_ARM])
        left = [arm for arm in arms if _units(by_arm.get(arm, [])) == everywhere]
        leader = fastest(
            tabulate([row for arm in (PLAIN_ARM, *left) for row in by_arm[arm]], bootstrap)
        ).arm
        pace = per_token(by_arm[leader], decode_seconds)
        return [
            arm
            for arm in left
            if paired_ratio(pace, per_token(by_arm[arm], decode_seconds), bootstrap).high >= 1
        ]

    return entrants


def passes(rows: Sequence[Measurement], arms: Sequence[Arm]) -> tuple[float, float]:
    """Target passes: those spent, and what plain decoding and every arm over every unit would cost.

    An arm that left is taken to have gone on at its own passes per unit; one that was screened out
    to cost what the measured ones of its k cost on average. It was screened out for guessing
    worse, so that is, if anything, too little.
    """
    by_arm = _by_arm(rows)
    units = len(_units(by_arm[PLAIN_ARM]))
    per_unit = {arm: _passes(found) / len(_units(found)) for arm, found in by_arm.items()}
    spent = float(sum(_passes(found) for found in by_arm.values()))
    whole = units * sum(_expected(arm, per_unit) for arm in {PLAIN_ARM, *arms})
    return spent, whole


def _expected(arm: Arm, per_unit: Mapping[Arm, float]) -> float:
    if arm in per_unit:
        return per_unit[arm]
    alike = [
        value for one, value in per_unit.items() if one.num_draft_tokens == arm.num_draft_tokens
    ]
    return sum(alike) / len(alike)


def _by_arm(rows: Sequence[Measurement]) -> dict[Arm, list[Measurement]]:
    found: dict[Arm, list[Measurement]] = {}
    for row in rows:
        found.setdefault(row.arm, []).append(row)
    return found


def _passes(rows: Sequence[Measurement]) -> int:
    return sum(row.target_passes for row in rows)


def _units(rows: Sequence[Measurement]) -> set[str]:
    return {row.unit for row in rows}
