"""Which jobs are alive. MLflow says RUNNING for ever of a run whose process was killed.

Each job holds a lock on `<output root>/running/<run id>.lock`. The kernel lets go of it however the
process ends, so a lock that can be taken belongs to a job that is over. Two jobs of a sweep that
share an output root never end each other.

Some file systems keep locks of one machine from another's sight. So the file also says on which
machine the job runs, and is touched while it does: a job of another machine is over only when its
file was not touched for long.
"""

import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from distill.locks import Lock, try_lock

if TYPE_CHECKING:
    from mlflow import MlflowClient

FOLDER = "running"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TOUCH_SECONDS = 30.0
STALE_SECONDS = 600.0


class Lease:
    """Says that the job of a parent run is alive, until released or the process ends."""

    def __init__(self, output_root: Path, run_id: str):
        folder = output_root / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{run_id}.lock"
        self._lock = try_lock(self.path)
        assert self._lock is not None, "a new run's lock is nobody's"
        self.path.write_text(machine(), encoding="utf-8")
        self._over = threading.Event()
        threading.Thread(target=self._touch, name="lease", daemon=True).start()

    def release(self, *, keep: bool = False) -> None:
        """Let go; keep: leave the file, by which the next job ends what still runs in MLflow."""
        self._over.set()
        assert self._lock is not None
        if keep:
            self._lock.release()
        else:
            _drop(self._lock)

    def _touch(self) -> None:
        while not self._over.wait(TOUCH_SECONDS):
            with suppress(OSError):
                os.utime(self.path)


def machine() -> str:
    """This start of this machine: where it is the same, locks are seen."""
    with suppress(OSError):
        return BOOT_ID.read_text(encoding="utf-8").strip()
    return platform.node()


def is_alive(output_root: Path, run_id: str) -> bool:
    """Whether a job of the output root is still at work."""
    path = output_root / FOLDER / f"{run_id}.lock"
    if not path.exists():
        return False
    lock = try_lock(path)
    if lock is None:
        return True
    lock.release()
    return _is_touched_elsewhere(path)


def end_abandoned(client: "MlflowClient", output_root: Path) -> list[str]:
    """Mark as KILLED the runs of jobs whose process is gone; returns the parents' ids.

    A run that this store does not know belongs to another one and keeps its file.
    """
    ended = []
    for path in sorted((output_root / FOLDER).glob("*.lock")):
        lock = try_lock(path)
        if lock is None:
            continue  # alive
        if not _is_touched_elsewhere(path) and end_tree(client, path.stem):
            ended.append(path.stem)
            _drop(lock)
        else:
            lock.release()
    return ended


def end_tree(client: "MlflowClient", run_id: str) -> bool:
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


def _is_touched_elsewhere(path: Path) -> bool:
    """Whether a job of another machine touched its file lately, by the file system's own clock."""
    if path.read_text(encoding="utf-8") == machine():
        return False
    probe = path.with_name(f".{os.getpid()}.{time.monotonic_ns()}")
    probe.touch()
    now = probe.stat().st_mtime
    probe.unlink()
    return now - path.stat().st_mtime < STALE_SECONDS


def _drop(lock: Lock) -> None:
    lock.path.unlink(missing_ok=True)
    lock.release()
