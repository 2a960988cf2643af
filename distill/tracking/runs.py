"""One parent run per job, one nested run per stage.

    with start_job(config, tracking, output_root, name) as job:
        with job.stage("train") as run:
            run.log_metrics({"alpha": 0.4})

Only rank zero talks to MLflow; on the others the same calls do nothing.
"""

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from distill.artifacts import make_writable
from distill.ranks import is_rank_zero
from distill.tracking.client import (
    SilentClient,
    connect,
    experiment_id,
    tracking_uri,
    without_credentials,
)
from distill.tracking.config import TrackingConfig
from distill.tracking.lease import drop_lease, end_abandoned, take_lease
from distill.tracking.names import mlflow_key
from distill.versions import git_state, hardware, versions

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient
    from mlflow.entities import Metric

FINGERPRINT = "distill.fingerprint"
"""Tag of a stage's runs: which artifact they worked on. An artifact has one run per restart."""

LARGEST_BATCH = 1000
"""The most metrics MLflow takes in one call."""
LARGEST_PARAM_BATCH = 100
"""The most parameters MLflow takes in one call."""


class Run:
    """One MLflow run: what a stage may log into it."""

    def __init__(self, client: "MlflowClient | SilentClient", run_id: str, uri: str) -> None:
        self.client: Any = client
        self.id = run_id
        self.tracking_uri = uri

    @property
    def silent(self) -> bool:
        """Whether this rank only goes through the motions."""
        return isinstance(self.client, SilentClient)

    def log_config(self, config: Mapping[str, Any]) -> None:
        """The whole configuration: parameters for searching, `config.yaml` for running it again."""
        items = [(mlflow_key(name), without_credentials(value)) for name, value in flatten(config)]
        for start in range(0, len(items), LARGEST_PARAM_BATCH):
            self._log_params(items[start : start + LARGEST_PARAM_BATCH])
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self.log_text("config.yaml", without_credentials(text))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Numbers of a finished piece of work. A training loop logs through `lightning_logger`."""
        if self.silent:
            return
        points = to_points(metrics, step)
        for start in range(0, len(points), LARGEST_BATCH):
            self.client.log_batch(self.id, metrics=points[start : start + LARGEST_BATCH])

    def log_up_to_date(self, recorded: Mapping[str, Any]) -> None:
        """Log the numbers an earlier run recorded for a stage that had nothing to do."""
        self.log_tags({"distill.up_to_date": "true"})
        self.log_metrics(dict(numbers(recorded)))

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, over those of the same names."""
        for name, value in tags.items():
            self.client.set_tag(self.id, name, value)

    def log_table(self, name: str, rows: "pd.DataFrame | Sequence[Mapping[str, Any]]") -> None:
        """`tables/NAME.parquet` for programs and `tables/NAME.json`, which MLflow's pages show."""
        if self.silent:
            return
        import pandas as pd

        table = pd.DataFrame(rows)
        for suffix in ("parquet", "json"):
            self.client.log_table(self.id, table, f"tables/{name}.{suffix}")

    def log_text(self, path: str, text: str) -> None:
        """Write a text file at the artifact path."""
        self.client.log_text(self.id, text, path)

    def log_folder(self, folder: Path, path: str) -> None:
        """Copy a folder's files below the artifact path."""
        self.client.log_artifacts(self.id, str(folder), path)

    def log_file(self, file: Path, path: str) -> None:
        """Copy a file below the artifact path."""
        self.client.log_artifact(self.id, str(file), path)

    def _log_params(self, items: list[tuple[str, str]]) -> None:
        if self.silent:
            return
        from mlflow.entities import Param

        self.client.log_batch(self.id, params=[Param(name, value) for name, value in items])


class TrackedJob:
    """A job's parent run, alive until the `with` block ends."""

    def __init__(self, run: Run, experiment: str, output_root: Path) -> None:
        self.run = run
        self._experiment = experiment
        self._lease = None if run.silent else take_lease(output_root, run.id)
        self._ending = _ends(run)

    def __enter__(self) -> "TrackedJob":
        self._ending.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._ending.__exit__(*exception)
        finally:
            if self._lease is not None:
                drop_lease(self._lease)

    @contextmanager
    def stage(self, name: str) -> Iterator[Run]:
        """A run nested under the job's: FINISHED, FAILED on an error, KILLED when interrupted."""
        tags = {"mlflow.parentRunId": self.run.id, "distill.stage": name}
        run = _create_run(self.run.client, self._experiment, name, tags, self.run.tracking_uri)
        with _ends(run):
            yield run


def start_job(
    config: Mapping[str, Any], tracking: TrackingConfig, output_root: Path, name: str
) -> TrackedJob:
    """Open the parent run with the configuration, versions, hardware and commit in it.

    First ends the runs that killed jobs of the same output root left RUNNING.

    Raises:
        UserError: the store cannot be used, or the output root cannot be written.
    """
    output_root = output_root.expanduser().resolve()
    uri = tracking_uri(tracking, output_root)
    if not is_rank_zero():
        return TrackedJob(Run(SilentClient(), "", uri), "", output_root)
    make_writable(output_root)
    client = connect(tracking, output_root)
    experiment = experiment_id(client, tracking, output_root)
    end_abandoned(client, output_root)
    run = _create_run(client, experiment, name, _code_tags(), uri)
    job = TrackedJob(run, experiment, output_root)
    run.log_config(config)
    made_with = {"versions": versions(), "hardware": hardware()}
    run.log_text("environment.json", json.dumps(made_with, indent=2))
    return job


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text; lists and null in JSON."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, default=str)


def to_points(metrics: Mapping[str, float], step: int) -> "list[Metric]":
    """MLflow's entities for named numbers measured now."""
    from mlflow.entities import Metric

    now_ms = int(time.time() * 1000)
    return [Metric(mlflow_key(name), float(value), now_ms, step) for name, value in metrics.items()]


def numbers(recorded: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among a manifest's values, with dotted names."""
    for key, value in recorded.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _create_run(
    client: "MlflowClient | SilentClient",
    experiment: str,
    name: str,
    tags: dict[str, str],
    uri: str,
) -> Run:
    if isinstance(client, SilentClient):
        return Run(client, "", uri)
    created = client.create_run(experiment, tags=tags, run_name=name)
    return Run(client, created.info.run_id, uri)


def _code_tags() -> dict[str, str]:
    state = git_state()
    if state is None:
        return {}
    return {"distill.git_commit": state.commit, "distill.git_dirty": str(state.dirty).lower()}


@contextmanager
def _ends(run: Run) -> Iterator[None]:
    """Give the run its final status however the block is left.

    SIGTERM arrives as SystemExit(143). Any other exit is a verdict: a gate or a certificate failed.
    """
    status = "FAILED"
    try:
        yield
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    except SystemExit as left:
        status = "KILLED" if left.code == 128 + signal.SIGTERM else "FAILED"
        raise
    finally:
        run.client.set_terminated(run.id, status)
