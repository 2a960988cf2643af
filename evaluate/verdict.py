"""Whether the draft is worth serving under a load, in one word and one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from distill.evaluate.pooling import Part
from distill.evaluate.statistics import Interval
from distill.evaluate.table import TableRow
from distill.speculative.prediction import BreakEven, best_k, break_even_alpha

SHIP = "ship"
DO_NOT_SHIP = "do not ship"
NOT_ENOUGH = "not enough evidence"

FEWEST_UNITS = 5
"""A percentile interval from fewer independent clocks than this promises more than it knows."""


@dataclass(frozen=True)
class Floor:
    """The speedup that a domain needs; decision says whether it has it."""

    domain: str
    floor: float
    speedup: Interval
    decision: str


@dataclass(frozen=True)
class Verdict:
    """One of the three decisions; best_k is predicted to be fastest at the measured alpha.

    break_even: None if no draft can pay. Both are None where no drafted token was tested.
    """

    decision: str
    reason: str
    break_even: BreakEven | None
    best_k: int | None
    floors: list[Floor]


def judge(
    champion: TableRow,
    table: Sequence[TableRow],
    margin: float,
    floors: Mapping[str, float] | None = None,
    domains: Sequence[Part] = (),
) -> Verdict:
    """Ship if the champion's lower bound is above the margin; not if its upper is below.

    floors: the speedup that each domain needs, judged alike on the champion's `domains`: one that
    is surely missed is enough not to ship, one that is open is not enough evidence. Break-even and
    best k are of rounds of a fixed k at the measured costs, also where rounds ended by confidence.
    """
    costs = {row.num_draft_tokens: row.cost for row in table if row.candidate == champion.candidate}
    tested = not isnan(champion.alpha.value)  # answers of one token leave nothing to draft
    break_even = break_even_alpha(costs) if tested else None
    checked = [
        Floor(part.name, floor, part.speedup, _decide(part.speedup, part.units, floor))
        for part in domains
        if (floor := (floors or {}).get(part.name)) is not None
    ]
    overall = _decide(champion.speedup, champion.units, margin)
    decisions = {overall, *(floor.decision for floor in checked)}
    decision = next(d for d in (DO_NOT_SHIP, NOT_ENOUGH, SHIP) if d in decisions)
    clauses = [
        _found(champion, overall, margin),
        *(_missed(floor) for floor in checked if floor.decision != SHIP),
        _explain(champion, break_even),
    ]
    return Verdict(
        decision=decision,
        reason="; ".join(clauses),
        break_even=break_even,
        best_k=best_k(min(champion.alpha.value, 1.0), costs) if tested else None,
        floors=checked,
    )


def _decide(speedup: Interval, units: int, least: float) -> str:
    if units < FEWEST_UNITS:
        return NOT_ENOUGH
    if speedup.low > least:
        return SHIP
    return DO_NOT_SHIP if speedup.high <= least else NOT_ENOUGH


def _found(row: TableRow, decision: str, margin: float) -> str:
    found = (
        f"{row.candidate} with k = {row.num_draft_tokens} decodes {_interval(row.speedup)} as fast "
        "as the target alone"
    )
    if row.units < FEWEST_UNITS:
        return f"{found}, but on {row.units} timed batches only: give more prompts"
    return {
        SHIP: f"{found}, above the margin of {margin:g}",
        DO_NOT_SHIP: f"{found}, which does not reach the margin of {margin:g}",
        NOT_ENOUGH: f"{found}, which has the margin of {margin:g} inside: give more prompts",
    }[decision]


def _missed(floor: Floor) -> str:
    how = "under" if floor.decision == DO_NOT_SHIP else "not surely above"
    return f"in {floor.domain} it is {_interval(floor.speedup)}, {how} its floor of {floor.floor:g}"


def _interval(speedup: Interval) -> str:
    return f"{speedup.value:.2f}× (95% interval {speedup.low:.2f} to {speedup.high:.2f})"


def _explain(row: TableRow, break_even: BreakEven | None) -> str:
    if isnan(row.alpha.value):
        return "no drafted token was tested: give more evaluate.max_new_tokens."
    alpha = f"its alpha is {row.alpha.value:.2f}"
    if break_even is None:
        return f"{alpha}, and at these costs not even a perfect draft would pay."
    return f"{alpha}, and {break_even.alpha:.2f} (k = {break_even.num_draft_tokens}) breaks even."
