"""What acceptance is worth: tokens per round, and the speedup they make at measured costs.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", §3.2–3.3:
equation 1 and theorem 3.8, extended by the measured cost v of verifying k+1 tokens, which the
paper takes as 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class StepTimes(Protocol):
    """Seconds of all draft steps and target passes of some decoding, and how many there were."""

    @property
    def draft_seconds(self) -> float: ...
    @property
    def draft_steps(self) -> float: ...
    @property
    def verify_seconds(self) -> float: ...
    @property
    def verify_steps(self) -> float: ...


@dataclass(frozen=True)
class Cost:
    """Times relative to one target step of one token, at the same batch and context.

    c: one draft step. v: one target step over k+1 tokens.
    """

    c: float
    v: float = 1.0

    @classmethod
    def measured(cls, plain: Sequence[StepTimes], drafted: Sequence[StepTimes]) -> "Cost":
        """Costs of the `drafted` runs' own steps, in steps of the `plain` runs beside them.

        Sums are pooled before they are divided. c is NaN where nothing was drafted; both are NaN
        where the plain runs made no step.
        """
        step = _per_step(plain, "verify")
        return cls(c=_per_step(drafted, "draft") / step, v=_per_step(drafted, "verify") / step)

    def speedup(self, tokens: float, drafts: float) -> float:
        """Speedup of rounds that commit `tokens` and draft `drafts` tokens on average."""
        return tokens / (self.v + drafts * self.c)


def expected_tokens(alpha: float, k: int) -> float:
    """Mean tokens per round with the bonus, (1 − alpha^(k+1)) / (1 − alpha); k + 1 at alpha = 1.

    The formula is computed as the geometric sum it stands for, which has no singular point.

    Raises:
        ValueError: alpha is no probability, or k is negative.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, not {alpha}")
    if k < 0:
        raise ValueError(f"k, the number of drafted tokens, is at least 0, not {k}")
    return sum(alpha**i for i in range(k + 1))


def predicted_speedup(alpha: float, k: int, cost: Cost) -> float:
    """expected_tokens / (v + k·c). With v = 1 it is the paper's formula."""
    return cost.speedup(expected_tokens(alpha, k), k)


@dataclass(frozen=True)
class BreakEven:
    """The smallest alpha that pays and the k it pays at."""

    alpha: float
    num_draft_tokens: int


def best_k(alpha: float, costs: Mapping[int, Cost]) -> int:
    """The k of highest predicted speedup at this alpha; the smaller k of two equals."""
    return max(sorted(costs), key=lambda k: predicted_speedup(alpha, k, costs[k]))


def break_even_alpha(costs: Mapping[int, Cost]) -> BreakEven | None:
    """Where predicted_speedup is 1 for the k that needs least; None if no draft can pay."""
    found = [
        BreakEven(alpha, k)
        for k, cost in sorted(costs.items())
        if (alpha := _break_even_at(k, cost)) is not None
    ]
    return min(found, key=lambda point: point.alpha) if found else None


def _break_even_at(k: int, cost: Cost) -> float | None:
    """Solves expected_tokens(alpha, k) = v + k·c by bisection; the left side rises with alpha."""
    if predicted_speedup(1.0, k, cost) < 1.0:
        return None
    low, high = 0.0, 1.0
    if predicted_speedup(low, k, cost) >= 1.0:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        if predicted_speedup(middle, k, cost) < 1.0:
            low = middle
        else:
            high = middle
    return high


def _per_step(times: Sequence[StepTimes], what: str) -> float:
    """Mean seconds of one step; what: `draft` or `verify`."""
    steps = sum(getattr(one, f"{what}_steps") for one in times)
    return sum(getattr(one, f"{what}_seconds") for one in times) / steps if steps else float("nan")
