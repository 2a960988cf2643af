"""Which k a measured acceptance asks for, and the alpha where a draft begins to pay."""

from collections.abc import Mapping
from dataclasses import dataclass

from distill.speculative.prediction import Cost, expected_tokens, predicted_speedup

__all__ = [
    "BreakEven",
    "Cost",
    "best_k",
    "break_even_alpha",
    "expected_tokens",
    "predicted_speedup",
]


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
