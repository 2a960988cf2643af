"""Lightning's logger, bound to a stage's run.

Metrics are sent in batches: one write to SQLite costs as much as a small training step.
"""

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from distill.tracking.runs import Point, to_points

if TYPE_CHECKING:
    from distill.tracking.runs import Run


class StageLogger(Logger):
    """Hands the points of a run on every `every_seconds` and at the end.

    The run's status is the job's to say: its stage still has work to do when training ends.
    """

    def __init__(
        self, run: "Run", every_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._run = run
        self._every_seconds = every_seconds
        self._clock = clock
        self._points: list[Point] = []
        self._last = clock()

    @property
    def name(self) -> str:
        return "mlflow"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep the numbers of a step, with their time, until the next batch is due."""
        self._points += to_points(metrics, step or 0)
        if self._clock() - self._last >= self._every_seconds:
            self._hand_on()

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The configuration is in the job's run."""

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """Hand on what is left."""
        self._hand_on()

    def _hand_on(self) -> None:  # not `save`, which Lightning calls at every step
        self._run.log_points(self._points)
        self._points, self._last = [], self._clock()


def lightning_logger(run: "Run", every_seconds: float = 10.0) -> Logger:
    """What `Trainer(logger=…)` is given. On ranks other than zero, a logger that does nothing."""
    return DummyLogger() if run.silent else StageLogger(run, every_seconds)
