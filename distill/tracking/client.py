"""The MLflow client of a job: which store it talks to, and whether that store answers.

Nothing of MLflow is imported before `connect`: it takes seconds.
"""

import logging
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from distill.errors import UserError
from distill.tracking.config import TrackingConfig

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

# Read by MLflow when it is imported or used. A user's own setting wins.
SETTINGS = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",  # database migrations, one line each
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # A thread sends, keeps what was not taken and tries again; waiting for minutes helps nobody.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",  # a training job calls nobody but its own server
}
SERVER_TIMEOUT_SECONDS = 10.0
_CREDENTIALS = re.compile(r"(?<=://)[^/\s'\"]*@")
_SECRETS = re.compile(
    r"(?<=[?&;])((?:\w*(?:password|passwd|pwd|secret|token|key))=)[^&;\s'\"]+", re.IGNORECASE
)


def tracking_uri(tracking: TrackingConfig, output_root: Path) -> str:
    """The configured store, a server's without user and password; else a SQLite file in the root.

    A database's user and password stay: there is no other place for them.
    """
    uri = tracking.uri or f"sqlite:///{output_root.expanduser().resolve() / 'mlflow.db'}"
    return without_credentials(uri) if _is_server(uri) else uri


def without_credentials(text: str) -> str:
    """A text that may be shown, logged and uploaded.

    `scheme://user:password@host` loses user and password, `?password=…` its value.
    """
    return _SECRETS.sub(r"\1***", _CREDENTIALS.sub("", text))


def connect(tracking: TrackingConfig, output_root: Path) -> "MlflowClient":
    """A client, and the process-wide default store, so that `models:/…` URIs resolve there too.

    Raises UserError when the store cannot be used. Creating a new SQLite file takes a few seconds.
    """
    uri = tracking_uri(tracking, output_root)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    # They say each attempt, or a traceback; the outbox says once that nobody answers.
    for noisy in ("urllib3.connectionpool", "mlflow.store.db.utils"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
    _log_in(tracking)
    _check_server(uri)

    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        mlflow.set_tracking_uri(uri)
        with _making_database(uri):
            return mlflow.MlflowClient(uri)
    except (MlflowException, SQLAlchemyError, ImportError, OSError) as problem:  # or no driver
        raise UserError(_unusable(uri, problem)) from problem


def experiment_id(client: "MlflowClient", tracking: TrackingConfig, output_root: Path) -> str:
    """The id of the experiment, made if missing.

    A server chooses where artifacts go; with a database they go under the output root.
    Raises UserError for a deleted experiment, and for an output root that was moved: its artifacts
    would be written where it used to be.
    """
    uri = tracking_uri(tracking, output_root)
    location = None if _is_server(uri) else (output_root.expanduser().resolve() / "mlruns").as_uri()
    found = _find_or_create(client, tracking.experiment, location)
    if found.lifecycle_stage != "active":
        raise UserError(
            f"MLflow experiment '{tracking.experiment}' was deleted: restore it with `mlflow "
            f"experiments restore -x {found.experiment_id}` or set tracking.experiment=NEW_NAME."
        )
    if tracking.uri is None and found.artifact_location != location:
        raise UserError(
            f"The output root was moved: experiment '{tracking.experiment}' keeps its artifacts in "
            f"{found.artifact_location}. Move it back, or set tracking.experiment=NEW_NAME."
        )
    return found.experiment_id


def _find_or_create(client: "MlflowClient", name: str, location: str | None) -> "Experiment":
    from mlflow.exceptions import MlflowException

    if (found := client.get_experiment_by_name(name)) is not None:
        return found
    try:
        client.create_experiment(name, artifact_location=location)
    except MlflowException as problem:  # another job of a sweep may have been faster
        if problem.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    created = client.get_experiment_by_name(name)
    assert created is not None
    return created


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://", "databricks"))


def _log_in(tracking: TrackingConfig) -> None:
    """Give MLflow the user and password of a server's URI where it looks for them.

    Then no request, message or run holds the URI that has them.
    """
    uri = tracking.uri or ""
    if not (_is_server(uri) and _CREDENTIALS.search(uri)):
        return
    parts = urllib.parse.urlsplit(uri)
    os.environ["MLFLOW_TRACKING_USERNAME"] = urllib.parse.unquote(parts.username or "")
    os.environ["MLFLOW_TRACKING_PASSWORD"] = urllib.parse.unquote(parts.password or "")


@contextmanager
def _making_database(uri: str) -> Iterator[None]:
    """Let one process at a time make the tables of a SQLite file: the second one finds them."""
    if not uri.startswith("sqlite:///"):
        yield
        return
    file = Path(uri.removeprefix("sqlite:///"))
    with FileLock(file.with_name(f".{file.name}.lock")):
        yield


def _check_server(uri: str) -> None:
    """Ask once, briefly: MLflow itself would try for minutes before it gives up."""
    if not uri.startswith(("http://", "https://")):
        return
    try:
        with urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=SERVER_TIMEOUT_SECONDS):
            return
    except urllib.error.HTTPError:
        return  # it answered; whether it lets us in is for MLflow to say
    except OSError as problem:
        raise UserError(_unusable(uri, problem)) from problem


def _unusable(uri: str, problem: Exception) -> str:
    reason = without_credentials(str(problem).strip().partition("\n")[0])
    return (
        f"MLflow cannot use {without_credentials(uri)} ({reason}): set tracking.uri to a running "
        "server (http://…), a database (sqlite:///FILE), or null for a file in the output root."
    )
