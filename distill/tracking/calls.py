"""The calls that are told to MLflow, as plain values that a file can hold until they are sent."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.tracking.client import without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

CREATE, END, METRICS, PARAMS = "create_run", "end_run", "metrics", "params"
TAG, TEXT, TABLE, FILE, FOLDER = "tag", "text", "table", "file", "folder"
LARGEST_BATCH = 1000
"""The most metrics MLflow takes in one call."""
LARGEST_PARAM_BATCH = 100
"""The most parameters MLflow takes in one call."""
LONGEST_REASON = 120
AWAY = {
    "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "DEADLINE_EXCEEDED",
}  # fmt: skip
"""MLflow's codes for a server that does not answer, or not now. Others refuse the call itself."""


def send(client: "MlflowClient", call: Mapping[str, Any], runs: Mapping[str, str]) -> str | None:
    """Make one call. Returns the id of a run that it made.

    runs: MLflow's id of each run by the name that the calls use. A run that MLflow refused to make
    has none, and what is said of it is left out.
    """
    if call["kind"] == CREATE:
        made = client.create_run(
            call["experiment"],
            start_time=call["milliseconds"],
            tags=call["tags"],
            run_name=call["name"],
        )
        return made.info.run_id
    if (run_id := runs.get(call["run"])) is not None:
        _TELL[call["kind"]](client, run_id, call)
    return None


def _metrics(client: "MlflowClient", run_id: str, call: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric

    points = [Metric(*point) for point in call["points"]]
    for start in range(0, len(points), LARGEST_BATCH):
        client.log_batch(run_id, metrics=points[start : start + LARGEST_BATCH])


def _params(client: "MlflowClient", run_id: str, call: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    params = [Param(name, value) for name, value in call["items"]]
    for start in range(0, len(params), LARGEST_PARAM_BATCH):
        client.log_batch(run_id, params=params[start : start + LARGEST_PARAM_BATCH])


def _table(client: "MlflowClient", run_id: str, call: Mapping[str, Any]) -> None:
    import pandas as pd

    table = pd.read_parquet(Path(call["source"]))
    for suffix in ("parquet", "json"):
        client.log_table(run_id, table, f"tables/{call['name']}.{suffix}")


_TELL: dict[str, Callable[["MlflowClient", str, Mapping[str, Any]], Any]] = {
    END: lambda client, run_id, call: client.set_terminated(
        run_id, call["status"], end_time=call["milliseconds"]
    ),
    METRICS: _metrics,
    PARAMS: _params,
    TAG: lambda client, run_id, call: client.set_tag(run_id, call["name"], call["value"]),
    TEXT: lambda client, run_id, call: client.log_text(run_id, call["text"], call["path"]),
    TABLE: _table,
    FILE: lambda client, run_id, call: client.log_artifact(run_id, call["source"], call["path"]),
    FOLDER: lambda client, run_id, call: client.log_artifacts(run_id, call["source"], call["path"]),
}


def is_away(problem: Exception) -> bool:
    """Whether the store does not answer, so that the same call may succeed later."""
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import OperationalError

    if isinstance(problem, MlflowException):
        return problem.error_code in AWAY
    if isinstance(problem, FileNotFoundError):
        return False  # a file that is told of and is gone
    return isinstance(problem, RequestException | OperationalError | OSError)


def reason(problem: Exception) -> str:
    """The beginning of the problem's first line, without credentials.

    SQLAlchemy says in a line before the database's own words where it met them: that is left out.
    """
    lines = str(problem).strip().splitlines()
    said = next((line for line in lines if not line.startswith("(raised as")), "")
    line = without_credentials(said or type(problem).__name__)
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
