"""The clock that says how much of the budget is spent, and so what is due."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from distill.training.config import BudgetConfig


@dataclass
class Spent:
    """Counters that go on over restarts.

    tokens: supervised tokens that all ranks trained on. windows: those read from the data module.
    steps: steps of the optimizer. seconds: time in training, pauses included. paused_seconds: the
    part of it that went into validation and writing.
    """

    tokens: int = 0
    windows: int = 0
    steps: int = 0
    seconds: float = 0.0
    paused_seconds: float = 0.0


class Clock:
    """Counts tokens and seconds against a budget.

    Seconds move only when `advance` is told them. Every rank is told those of rank 0, so that all
    agree on what is due.
    """

    def __init__(self, budget: BudgetConfig):
        self._budget = budget
        self._mark = time.perf_counter()
        self._paused = 0.0
        self.spent = Spent()

    def start(self) -> None:
        """Count from now on; loading and setting up, which came before, are not training."""
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
        """Time spent inside counts for the budget but not for tokens per second."""
        started = time.perf_counter()
        yield
        self._paused += time.perf_counter() - started

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Time spent inside counts neither for the budget nor for tokens per second."""
        started = time.perf_counter()
        yield
        self._mark += time.perf_counter() - started

    @property
    def progress(self) -> float:
        """Share of the budget spent, of tokens or of minutes, whichever is more; 1 is the end."""
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
