"""Whether the draft is worth serving, in one word and one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass

from distill.evaluate.acceptance import BreakEven, best_k, break_even_alpha
from distill.evaluate.select import TableRow

SHIP = "ship"
DO_NOT_SHIP = "do not ship"
NOT_ENOUGH = "not enough evidence"

FEWEST_UNITS = 5
"""A percentile interval from fewer independent clocks than this promises more than it knows."""


@dataclass(frozen=True)
class Verdict:
    """One of the three decisions; best_k is predicted to be fastest at the measured alpha."""

    decision: str
    reason: str
    break_even: BreakEven | None
    best_k: int


def judge(champion: TableRow, table: Sequence[TableRow], margin: float) -> Verdict:
    """Ship if the champion's lower bound is above the margin; not if its upper is below."""
    costs = {row.num_draft_tokens: row.cost for row in table if row.candidate == champion.candidate}
    break_even = break_even_alpha(costs)
    decision, why = _decide(champion, margin)
    return Verdict(
        decision=decision,
        reason=f"{why} {_explain(champion, break_even)}",
        break_even=break_even,
        best_k=best_k(min(champion.alpha.value, 1.0), costs),
    )


def _decide(row: TableRow, margin: float) -> tuple[str, str]:
    speedup = row.speedup
    found = (
        f"{row.candidate} with k = {row.num_draft_tokens} decodes {speedup.value:.2f}× as fast as "
        f"the target alone (95% interval {speedup.low:.2f} to {speedup.high:.2f})"
    )
    if row.units < FEWEST_UNITS:
        return NOT_ENOUGH, f"{found}, but on {row.units} timed batches only: give more prompts;"
    if speedup.low > margin:
        return SHIP, f"{found}, above the margin of {margin:g};"
    if speedup.high <= margin:
        return DO_NOT_SHIP, f"{found}, which does not reach the margin of {margin:g};"
    return NOT_ENOUGH, f"{found}, which has the margin of {margin:g} inside: give more prompts;"


def _explain(row: TableRow, break_even: BreakEven | None) -> str:
    alpha = f"its alpha is {row.alpha.value:.2f}"
    if break_even is None:
        return f"{alpha}, and at these costs not even a perfect draft would pay."
    return f"{alpha}, and {break_even.alpha:.2f} (k = {break_even.num_draft_tokens}) breaks even."
