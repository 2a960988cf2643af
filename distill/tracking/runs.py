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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from distill.artifacts import make_writable
from distill.ranks import is_rank_zero
from distill.tracking import calls
from distill.tracking.client import connect, experiment_id, tracking_uri, without_credentials
from distill.tracking.config import TrackingConfig
from distill.tracking.lease import Lease, end_abandoned, end_tree, is_alive
from distill.tracking.names import mlflow_key
from distill.tracking.outbox import Outbox, answering, left_over, send_left_over
from distill.versions import git_state, hardware, versions

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

FINGERPRINT = "distill.fingerprint"
"""Tag of a stage's runs: which artifact they worked on. An artifact has one run per restart."""

Point = tuple[str, float, int, int]
"""A metric's name, value, time in milliseconds and step."""


class Run:
    """One MLflow run: what a stage may log into it. What is logged is sent by a thread."""

    def __init__(self, outbox: Outbox | None, name: str, uri: str) -> None:
        """name: what the outbox calls the run. outbox: None on every rank but zero."""
        self._outbox = outbox
        self._name = name
        self.tracking_uri = uri

    @property
    def silent(self) -> bool:
        """Whether this rank only goes through the motions."""
        return self._outbox is None

    @property
    def id(self) -> str:
        """MLflow's id. TrackingAwayError where the run is not there yet and MLflow is away."""
        return self._name if self._outbox is None else self._outbox.real_id(self._name)

    @property
    def client(self) -> "MlflowClient":
        """For reading, once all that was logged is sent. TrackingAwayError when MLflow is away."""
        assert self._outbox is not None, "only rank zero reads"
        self._outbox.wait()
        return self._outbox.client

    def log_config(self, config: Mapping[str, Any]) -> None:
        """The whole configuration: parameters for searching, `config.yaml` for running it again."""
        pairs = flatten(config)
        items = [[mlflow_key(name), without_credentials(value)] for name, value in pairs]
        self._put(calls.PARAMS, items=items)
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self.log_text("config.yaml", without_credentials(text))

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        """Numbers of a finished piece of work. A training loop logs through `lightning_logger`."""
        self.log_points(to_points(metrics, step))

    def log_points(self, points: Sequence[Point]) -> None:
        """Numbers that were measured before now."""
        if points:
            self._put(calls.METRICS, points=list(points))

    def log_up_to_date(self, recorded: Mapping[str, Any]) -> None:
        """Log the numbers an earlier run recorded for a stage that had nothing to do."""
        self.log_tags({"distill.up_to_date": "true"})
        self.log_metrics(dict(numbers(recorded)))

    def log_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, over those of the same names."""
        for name, value in tags.items():
            self._put(calls.TAG, name=name, value=value)

    def log_table(self, name: str, rows: "pd.DataFrame | Sequence[Mapping[str, Any]]") -> None:
        """`tables/NAME.parquet` for programs and `tables/NAME.json`, which MLflow's pages show."""
        if self._outbox is None:
            return
        import pandas as pd

        with TemporaryDirectory() as scratch:
            path = Path(scratch) / f"{name}.parquet"
            pd.DataFrame(rows).to_parquet(path)
            self._put(calls.TABLE, name=name, source=self._outbox.keep(path))

    def log_text(self, path: str, text: str) -> None:
        """Write a text file at the artifact path."""
        self._put(calls.TEXT, path=path, text=text)

    def log_folder(self, folder: Path, path: str) -> None:
        """Copy a folder's files, as they are now, below the artifact path."""
        if self._outbox is not None:
            self._put(calls.FOLDER, path=path, source=self._outbox.keep(folder))

    def log_file(self, file: Path, path: str) -> None:
        """Copy a file, as it is now, below the artifact path."""
        if self._outbox is not None:
            self._put(calls.FILE, path=path, source=self._outbox.keep(file))

    def nested(self, experiment: str, name: str, tags: Mapping[str, str]) -> "Run":
        """A new run of the same job."""
        made = Run(self._outbox, uuid4().hex, self.tracking_uri)
        made._put(
            calls.CREATE, experiment=experiment, name=name, tags=dict(tags), milliseconds=_now()
        )
        return made

    def end(self, status: str) -> None:
        """Give the run its final status."""
        self._put(calls.END, status=status, milliseconds=_now())

    def _put(self, kind: str, **what: Any) -> None:
        if self._outbox is not None:
            self._outbox.put(kind, self._name, **what)


class TrackedJob:
    """A job's parent run, alive until the `with` block ends."""

    def __init__(
        self, run: Run, experiment: str, outbox: Outbox | None = None, lease: Lease | None = None
    ) -> None:
        self.run = run
        self._experiment = experiment
        self._outbox, self._lease = outbox, lease
        self._ending = _ends(run)

    def __enter__(self) -> "TrackedJob":
        self._ending.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        try:
            self._ending.__exit__(*exception)
        finally:
            sent = self._outbox is None or self._outbox.close()
            if self._lease is not None:
                # Where MLflow does not know how the runs ended, the next job finds the file.
                self._lease.release(keep=not sent)

    @contextmanager
    def stage(self, name: str) -> Iterator[Run]:
        """A run nested under the job's: FINISHED, FAILED on an error, KILLED when interrupted."""
        tags = {"mlflow.parentRunId": self.run.id, "distill.stage": name}
        run = self.run.nested(self._experiment, name, tags)
        with _ends(run):
            yield run


def start_job(
    config: Mapping[str, Any], tracking: TrackingConfig, output_root: Path, name: str
) -> TrackedJob:
    """Open the parent run with the configuration, versions, hardware and commit in it.

    First sends what earlier jobs of the same output root could not send, and ends the runs that
    killed ones left RUNNING.

    Raises:
        UserError: the store cannot be used, or the output root cannot be written.
    """
    output_root = output_root.expanduser().resolve()
    uri = tracking_uri(tracking, output_root)
    if not is_rank_zero():
        return TrackedJob(Run(None, "", uri), "")
    make_writable(output_root)
    client = connect(tracking, output_root)
    with answering(uri):
        experiment = experiment_id(client, tracking, output_root)
        for folder in left_over(output_root, uri):
            if not is_alive(output_root, folder.name):
                send_left_over(client, folder)
                end_tree(client, folder.name)
        end_abandoned(client, output_root)
        parent = client.create_run(experiment, tags=_code_tags(), run_name=name).info.run_id
    lease = Lease(output_root, parent)
    outbox = Outbox(client, output_root, parent, uri)
    job = TrackedJob(Run(outbox, parent, uri), experiment, outbox, lease)
    job.run.log_config(config)
    made_with = {"versions": versions(), "hardware": hardware()}
    job.run.log_text("environment.json", json.dumps(made_with, indent=2))
    return job


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text; lists and null in JSON."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value, default=str)


def to_points(metrics: Mapping[str, float], step: int) -> list[Point]:
    """Named numbers measured now."""
    now = _now()
    return [(mlflow_key(name), float(value), now, step) for name, value in metrics.items()]


def numbers(recorded: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among a manifest's values, with dotted names."""
    for key, value in recorded.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{key}", float(value)


def _now() -> int:
    return int(time.time() * 1000)


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
        run.end(status)
