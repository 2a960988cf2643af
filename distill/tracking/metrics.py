"""Metrics of a training run, sent in batches: one write to SQLite costs as much as a small step."""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

LARGEST_BATCH = 1000
"""The most metrics MLflow takes in one call."""


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


def to_points(metrics: Mapping[str, float], step: int) -> "list[Metric]":
    """MLflow's entities for named numbers measured now."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    return [Metric(name, float(value), now_ms, step) for name, value in metrics.items()]
