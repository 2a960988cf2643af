"""Whether the draft is worth serving under a load, in one word and one sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from distill.evaluate.intervals import FEWEST_UNITS, Interval, more_units
from distill.evaluate.pooling import Part
from distill.evaluate.records import LOOKUP
from distill.evaluate.table import TableRow
from distill.speculative.prediction import BreakEven, best_k, break_even_alpha

SHIP = "ship"
DO_NOT_SHIP = "do not ship"
NOT_ENOUGH = "not enough evidence"


@dataclass(frozen=True)
class Floor:
    """The speedup end to end that a domain needs; decision says whether it has it."""

    domain: str
    floor: float
    speedup: Interval
    decision: str


@dataclass(frozen=True)
class Verdict:
    """One of the three decisions; best_k is predicted to be fastest at the measured alpha.

    break_even: None if no draft can pay. It and best_k are None where no drafted token was tested,
    and they are of rounds of a fixed k. more_units: independent prompts or batches that are missing
    for *ship*, at the measured effect and spread; None where more would not help.
    """

    decision: str
    reason: str
    break_even: BreakEven | None
    best_k: int | None
    floors: list[Floor]
    more_units: int | None = None


def judge(
    champion: TableRow,
    table: Sequence[TableRow],
    margin: float,
    floors: Mapping[str, float] | None = None,
    domains: Sequence[Part] = (),
    decoding_margin: float | None = None,
) -> Verdict:
    """Ship if the champion's lower bound is above the margin; not if its upper is below.

    Judged is the speedup of what a user waits for, end to end, and by `decoding_margin`, where it
    is given, that of decoding alone. floors: the speedup end to end that each domain needs, judged
    alike on the champion's `domains`: one that is surely missed is enough not to ship, one that is
    open is not enough evidence.
    """
    costs = {row.num_draft_tokens: row.cost for row in table if row.candidate == champion.candidate}
    tested = not isnan(champion.alpha.value)  # answers of one token leave nothing to draft
    break_even = break_even_alpha(costs) if tested else None
    checked = [
        Floor(part.name, floor, speedup, _decide(speedup, part.units, floor))
        for part in domains
        if (floor := (floors or {}).get(part.name)) is not None
        and (speedup := part.speedup_end_to_end)
    ]
    whole = champion.speedup_end_to_end
    overall = _decide(whole, champion.units, margin)
    decisions = [overall, *(floor.decision for floor in checked)]
    if decoding_margin is not None:
        decisions.append(_decide(champion.speedup, champion.units, decoding_margin))
    missing = more_units(whole, champion.units, margin) if overall == NOT_ENOUGH else None
    clauses = [
        _found(champion, overall, margin, missing),
        *_alone(champion, decoding_margin),
        *_beside_lookup(champion, table),
        *(_missed(floor) for floor in checked if floor.decision != SHIP),
        _explain(champion, break_even),
    ]
    return Verdict(
        decision=next(d for d in (DO_NOT_SHIP, NOT_ENOUGH, SHIP) if d in decisions),
        reason="; ".join(clauses),
        break_even=break_even,
        best_k=best_k(min(first_alpha(champion), 1.0), costs) if tested else None,
        floors=checked,
        more_units=missing,
    )


def first_alpha(row: TableRow) -> float:
    """Alpha of a round's first draft, which no threshold leaves out: comparable with break-even.

    At a fixed k it is alpha itself.
    """
    return row.alpha_at[0] if row.confidence_threshold else row.alpha.value


def _decide(speedup: Interval, units: int, least: float) -> str:
    if units < FEWEST_UNITS:
        return NOT_ENOUGH
    if speedup.low > least:
        return SHIP
    return DO_NOT_SHIP if speedup.high <= least else NOT_ENOUGH


def _found(row: TableRow, decision: str, margin: float, missing: int | None) -> str:
    found = (
        f"{row.candidate} with k = {row.num_draft_tokens} is {_interval(row.speedup_end_to_end)} "
        "as fast as the target alone, prompts included"
    )
    if decision == SHIP:
        return f"{found}, above the margin of {margin:g}"
    if decision == DO_NOT_SHIP:
        return f"{found}, which does not reach the margin of {margin:g}"
    why = f"which has the margin of {margin:g} inside"
    if row.units < FEWEST_UNITS:
        why = f"but on {row.units} independent timings only"
    if missing is None:
        return f"{found}, {why}; more prompts would not lift it above the margin"
    return f"{found}, {why}: about {missing} more independent prompts or batches would decide"


def _alone(row: TableRow, margin: float | None) -> list[str]:
    """Decoding alone, beside what is judged."""
    found = f"decoding alone it is {_interval(row.speedup)}"
    if margin is None:
        return [found]
    decision = _decide(row.speedup, row.units, margin)
    how = {SHIP: "above", DO_NOT_SHIP: "not above", NOT_ENOUGH: "not surely above"}[decision]
    return [f"{found}, {how} its margin of {margin:g}"]


def _beside_lookup(row: TableRow, table: Sequence[TableRow]) -> list[str]:
    """What needs no training, where it was measured and the draft is not the faster one."""
    return [
        f"prompt lookup, which needs no training, is {_interval(one.speedup_end_to_end)}: this "
        "draft does not beat it"
        for one in table
        if one.candidate == LOOKUP and one.speedup_end_to_end.value >= row.speedup_end_to_end.value
    ]


def _missed(floor: Floor) -> str:
    how = "under" if floor.decision == DO_NOT_SHIP else "not surely above"
    return f"in {floor.domain} it is {_interval(floor.speedup)}, {how} its floor of {floor.floor:g}"


def _interval(speedup: Interval) -> str:
    return f"{speedup.value:.2f}× (95% interval {speedup.low:.2f} to {speedup.high:.2f})"


def _explain(row: TableRow, break_even: BreakEven | None) -> str:
    if isnan(row.alpha.value):
        return "no drafted token was tested: give more evaluate.max_new_tokens."
    what = "the alpha of first drafts" if row.confidence_threshold else "its alpha"
    alpha = f"{what} is {first_alpha(row):.2f}"
    if break_even is None:
        return f"{alpha}, and at these costs not even a perfect draft would pay."
    return f"{alpha}, and {break_even.alpha:.2f} (k = {break_even.num_draft_tokens}) breaks even."
