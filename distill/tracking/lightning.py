"""Lightning's MLflow logger, bound to a stage's run.

Metrics are sent in batches: one write to SQLite costs as much as a small training step.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from distill.tracking.runs import LARGEST_BATCH, to_points

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from distill.tracking.runs import Run


class MetricBuffer:
    """Points of one run, sent every `every_seconds` and at the end.

    A store that fails during training must not end it: the points are kept and a warning is given.
    `close` raises if they still cannot be written.
    """

    def __init__(
        self,
        client: "MlflowClient",
        run_id: str,
        every_seconds: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._run_id = run_id
        self._every_seconds = every_seconds
        self._clock = clock
        self._points: list[Metric] = []
        self._last_write = clock()

    def add(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep the points, with the time they were measured; write when a write is due."""
        self._points.extend(to_points(metrics, step))
        if self._clock() - self._last_write >= self._every_seconds:
            self._try_write()

    def close(self) -> None:
        """Write what is left. Raises MlflowException when that fails."""
        self._write()

    def _try_write(self) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self._write()
        except MlflowException as problem:
            reason = str(problem).partition("\n")[0]
            warnings.warn(
                f"MLflow did not take {len(self._points)} metrics and is tried again: {reason}",
                stacklevel=3,
            )
        self._last_write = self._clock()

    def _write(self) -> None:
        while self._points:
            batch = self._points[:LARGEST_BATCH]
            self._client.log_batch(self._run_id, metrics=batch)
            del self._points[: len(batch)]


class StageLogger(MLFlowLogger):
    """Sends metrics in batches and leaves the run's status to the job that opened the run.

    Lightning's own logger would write to the store at every step, and mark the run FINISHED while
    its stage still has work to do.
    """

    def __init__(self, run: "Run", every_seconds: float) -> None:
        super().__init__(tracking_uri=run.tracking_uri, run_id=run.id)
        self._buffer = MetricBuffer(run.client, run.id, every_seconds)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep the numbers of a step until the next batch is sent."""
        self._buffer.add(metrics, step or 0)

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """Send what is left. The status is the job's to say."""
        self._buffer.close()


def lightning_logger(run: "Run", every_seconds: float = 10.0) -> Logger:
    """What `Trainer(logger=…)` is given. On ranks other than zero, a logger that does nothing."""
    return DummyLogger() if run.silent else StageLogger(run, every_seconds)
