"""Metrics over training, read back from MLflow."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distill.tracking.outbox import TrackingAwayError, answering
from distill.tracking.runs import FINGERPRINT, Run

if TYPE_CHECKING:
    from mlflow.entities import Metric

log = logging.getLogger(__name__)

History = list[tuple[float, float]]


def histories(run: Run, fingerprint: str, names: Sequence[str], over: str) -> dict[str, History]:
    """Each metric as points (value of `over`, value), of all runs that worked on an artifact.

    run: any run of the same experiment. A training that was killed and went on has several runs:
    where they overlap, the later one's points stay. Lightning logs a metric again with every step
    until it changes; the first point of each value is kept. Names that nobody logged are left out;
    all are, with a warning, when MLflow does not answer.
    """
    if run.silent:
        return {}
    try:
        with answering(run.tracking_uri):
            return _read(run, fingerprint, names, over)
    except TrackingAwayError as away:
        log.warning("the training's curves are left out: %s", away)
        return {}


def _read(run: Run, fingerprint: str, names: Sequence[str], over: str) -> dict[str, History]:
    client = run.client
    experiment = client.get_run(run.id).info.experiment_id
    runs = client.search_runs(
        [experiment], f"tags.`{FINGERPRINT}` = '{fingerprint}'", order_by=["attributes.start_time"]
    )
    ids = [one.info.run_id for one in runs]
    place = _by_step([client.get_metric_history(one, over) for one in ids])
    found = {}
    for name in names:
        values = _by_step([client.get_metric_history(one, name) for one in ids])
        points = [(place[step], values[step]) for step in sorted(values) if step in place]
        if points:
            found[name] = _changes(points)
    return found


def _by_step(parts: "Sequence[Sequence[Metric]]") -> dict[int, float]:
    values: dict[int, float] = {}
    for part in parts:
        if part:  # what an earlier run did beyond the point where this one went on is lost
            first = min(point.step for point in part)
            values = {step: value for step, value in values.items() if step < first}
        values |= {point.step: point.value for point in part}
    return values


def _changes(points: History) -> History:
    before = [None, *(value for _, value in points)]
    return [point for point, last in zip(points, before, strict=False) if point[1] != last]
