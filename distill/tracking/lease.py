"""Which jobs are alive. MLflow says RUNNING for ever of a run whose process was killed.

Each job holds a lock on `<output root>/running/<run id>.lock`. The kernel lets go of it however the
process ends, so a lock that can be taken belongs to a job that is over. Two jobs of a sweep that
share an output root never end each other.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

if TYPE_CHECKING:
    from mlflow import MlflowClient

FOLDER = "running"


def take_lease(output_root: Path, run_id: str) -> FileLock:
    """Say that the job of this parent run is alive, until released or the process ends."""
    folder = output_root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    lease = FileLock(folder / f"{run_id}.lock", timeout=0)
    lease.acquire()
    return lease


def drop_lease(lease: FileLock) -> None:
    """Let go, and leave nothing behind."""
    path = Path(lease.lock_file)
    lease.release()
    path.unlink(missing_ok=True)


def end_abandoned(client: "MlflowClient", output_root: Path) -> list[str]:
    """Mark as KILLED the runs of jobs whose process is gone; returns the parents' ids.

    A run that this store does not know belongs to another one and keeps its file.
    """
    ended = []
    for path in sorted((output_root / FOLDER).glob("*.lock")):
        lease = FileLock(path, timeout=0)
        try:
            lease.acquire()
        except Timeout:
            continue  # alive
        if _end_tree(client, path.stem):
            ended.append(path.stem)
            drop_lease(lease)
        else:
            lease.release()
    return ended


def _end_tree(client: "MlflowClient", run_id: str) -> bool:
    """End a parent and its stages where they still run. False when the store has no such run."""
    from mlflow.exceptions import MlflowException

    try:
        parent = client.get_run(run_id)
    except MlflowException as problem:
        if problem.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    stages = client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run_id}'", max_results=1000
    )
    for run in (*stages, parent):
        if run.info.status == "RUNNING":
            client.set_terminated(run.info.run_id, "KILLED")
    return True
