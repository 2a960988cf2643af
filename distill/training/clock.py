"""How much of the budget is spent; everything that happens "at a share of the budget" asks here."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from distill.errors import UserError
from distill.schema import BudgetConfig


def check_budget(budget: BudgetConfig) -> None:
    """Raise UserError for a budget that never ends or is spent before it starts."""
    if budget.tokens is None and budget.minutes is None:
        raise UserError("training has no end: set budget.tokens or budget.minutes")
    for name in ("tokens", "minutes"):
        value = getattr(budget, name)
        if value is not None and not value > 0:
            raise UserError(f"budget.{name} is {value}; it must be above 0")


@dataclass
class Spent:
    """Counters that go on over restarts.

    tokens: supervised tokens trained on, all ranks. windows: read from the data module. steps: of
    the optimizer. seconds: in training, pauses included. paused_seconds: of those, spent on
    validation and on writing.
    """

    tokens: int = 0
    windows: int = 0
    steps: int = 0
    seconds: float = 0.0
    paused_seconds: float = 0.0


class Clock:
    """Counts tokens and seconds against a budget.

    Seconds move only when `advance` is told them, so that all ranks agree on what is due: they are
    rank 0's.
    """

    def __init__(self, budget: BudgetConfig):
        self._budget = budget
        self._mark = time.perf_counter()
        self._paused = 0.0
        self.spent = Spent()

    def start(self) -> None:
        """Count from now on; what came before (loading, setting up) is not training."""
        self._mark = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap on this rank."""
        now = time.perf_counter()
        elapsed, self._mark = now - self._mark, now
        return elapsed

    def advance(self, tokens: int, seconds: float) -> None:
        """Record one window: its supervised tokens on all ranks, and the seconds it took."""
        self.spent.windows += 1
        self.spent.tokens += tokens
        self.spent.steps += tokens > 0
        self.spent.seconds += seconds
        self.spent.paused_seconds += self._paused
        self._paused = 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time spent inside is part of the budget but not of tokens per second."""
        started = time.perf_counter()
        yield
        self._paused += time.perf_counter() - started

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time spent inside is no part of training: neither of the budget nor of the rate."""
        started = time.perf_counter()
        yield
        self._mark += time.perf_counter() - started

    @property
    def progress(self) -> float:
        """Share of the budget spent: of tokens or minutes, the further one. 1 or more: the end."""
        shares = [0.0]
        if self._budget.tokens is not None:
            shares.append(self.spent.tokens / self._budget.tokens)
        if self._budget.minutes is not None:
            shares.append(self.spent.seconds / (60.0 * self._budget.minutes))
        return max(shares)

    @property
    def finished(self) -> bool:
        return self.progress >= 1.0

    @property
    def tokens_per_second(self) -> float:
        """Supervised tokens trained on per second of training proper."""
        return self.spent.tokens / max(self.spent.seconds - self.spent.paused_seconds, 1e-9)

    def state_dict(self) -> dict[str, float]:
        return asdict(self.spent)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.spent = Spent(**state)  # pyright: ignore[reportArgumentType]
