"""Lightning's MLflow logger, bound to a stage's run."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import MLFlowLogger
from lightning.pytorch.loggers.logger import DummyLogger, Logger
from lightning.pytorch.utilities import rank_zero_only

from distill.tracking.metrics import MetricBuffer

if TYPE_CHECKING:
    from distill.tracking.runs import Run


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
        self._buffer.add(metrics, step or 0)

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        self._buffer.close()


def lightning_logger(run: "Run", every_seconds: float = 10.0) -> Logger:
    """What `Trainer(logger=…)` is given. On ranks other than zero, a logger that does nothing."""
    return DummyLogger() if run.silent else StageLogger(run, every_seconds)
