"""What a job tells MLflow, told by a thread of its own: no stage ever waits for a store.

Each call is first a line of `<output root>/tracking/<run id>/calls.jsonl`, with the files that it
names beside it, and then sent in order. While MLflow does not answer, the calls wait there. What a
job could not send by its end, or by its death, the next job with the same store sends.
"""

import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.locks import try_lock
from distill.tracking import calls
from distill.tracking.client import without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

FOLDER = "tracking"
CALLS, SENT, STORE, FILES, LOCK = "calls.jsonl", "sent.jsonl", "store", "files", "lock"
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts while MLflow does not answer; each is twice the one before."""
PATIENCE_SECONDS = 60.0
"""Who must wait for what was said so far waits so long for one call, and not for a second one."""


class TrackingAwayError(UserError):
    """MLflow does not answer, and what is asked for cannot be done without it."""


class Outbox:
    """The calls of one job. `put` returns at once, whatever the store does."""

    def __init__(self, client: "MlflowClient", output_root: Path, run_id: str, uri: str):
        """run_id: of the job's parent run, which is there already. uri: of the store."""
        self.client = client
        self.uri = uri
        self.folder = output_root / FOLDER / run_id
        self._output_root = output_root
        self._calls: deque[dict[str, Any]] = deque()
        self._runs = {run_id: run_id}
        self._numbers = count()
        self._attempts = self._failed = self._done = 0
        self._warned = self._closing = self._hurried = False
        self._changed = threading.Condition()
        self._problem = ""
        self._keep()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def put(self, kind: str, run: str, **what: Any) -> None:
        """Queue a call, see `calls.send`. run: what `calls.CREATE` calls it, or the parent's id."""
        call = {"number": next(self._numbers), "kind": kind, "run": run, **what}
        with suppress(OSError), (self.folder / CALLS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(call) + "\n")
        with self._changed:
            self._calls.append(call)
            self._changed.notify_all()

    def keep(self, source: Path) -> str:
        """A file or folder as it is now, for a call that is sent later; returns where it is kept.

        Files are linked where that is possible: ours are renamed into place and never written to.
        """
        place = self.folder / FILES / str(next(self._numbers)) / source.name
        try:
            if source.is_dir():
                shutil.copytree(source, place, copy_function=_link)
            else:
                place.parent.mkdir(parents=True)
                _link(source, place)
        except OSError:  # as on a full disk: then the place itself must last until it is sent
            return str(source)
        return str(place)

    def real_id(self, run: str) -> str:
        """MLflow's id of a run. Waits until it has one."""
        if run not in self._runs:
            self.wait()
        return self._runs[run]

    def wait(self) -> None:
        """Return when all that was put is sent.

        Raises:
            TrackingAwayError: MLflow does not answer.
        """
        if not self._flush():
            raise TrackingAwayError(
                f"MLflow at {without_credentials(self.uri)} does not answer ({self._problem}): "
                "run the same command again when it does, or set another tracking.uri; "
                "what is finished stays finished"
            )

    def close(self) -> bool:
        """Send what is left, if MLflow answers; else leave it to the next job. Whether it did."""
        sent = self._flush()
        with self._changed:
            self._closing = self._hurried = True
            self._changed.notify_all()
        if sent:
            self._thread.join(PATIENCE_SECONDS)
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):  # another job's are there
                self.folder.parent.rmdir()
        else:
            log.warning(
                "MLflow did not take %d records (%s): the next job sends them from %s",
                len(self._calls), self._problem, self.folder,
            )  # fmt: skip
        return sent

    def _keep(self) -> None:
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / STORE).write_text(store_id(self.uri), encoding="utf-8")

    def _flush(self) -> bool:
        """Whether all was sent. Gives up when an attempt fails that begins from now on."""
        with self._changed:
            attempts, done, since = self._attempts, self._done, time.monotonic()
            self._hurried = True
            self._changed.notify_all()
            while self._calls:
                self._changed.wait(0.5)
                if self._done > done:
                    done, since = self._done, time.monotonic()
                if self._failed > attempts:
                    return False
                if time.monotonic() - since > PATIENCE_SECONDS:
                    self._problem = self._problem or "it took longer than a minute"
                    return False
            return True

    def _work(self) -> None:
        """Send one call after the other until the outbox is closed."""
        pause = FIRST_PAUSE
        while (call := self._next()) is not None:
            problem = self._attempt(call)
            with self._changed:
                if problem is None:
                    pause = FIRST_PAUSE
                    self._calls.popleft()
                    self._done += 1
                    self._changed.notify_all()
                else:
                    self._failed = self._attempts
                    self._problem = problem
                    self._changed.notify_all()
                    self._warn()
                    self._hurried = False
                    self._changed.wait_for(lambda: self._hurried, pause)
                    pause = min(2 * pause, LONGEST_PAUSE)

    def _next(self) -> dict[str, Any] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._calls or self._closing)
            self._attempts += 1
            return None if self._closing else self._calls[0]

    def _attempt(self, call: dict[str, Any]) -> str | None:
        """Send a call; the reason when MLflow does not answer. What it refuses is dropped."""
        try:
            made = calls.send(self.client, call, self._runs)
        except Exception as problem:
            reason = calls.reason(problem)
            if calls.is_away(problem):
                return reason
            log.warning("MLflow refused a record (%s): %s", call["kind"], reason)
            made = None
        if made is not None:
            self._runs[call["run"]] = made
        with suppress(OSError):
            _note_sent(self.folder, call, made)
        return None

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "MLflow does not answer (%s): the work goes on, and what it says is kept in %s "
                "until MLflow is back",
                self._problem, self.folder,
            )  # fmt: skip


def left_over(output_root: Path, uri: str) -> list[Path]:
    """Folders of what jobs of this store could not send, living jobs among them."""
    found = []
    for folder in sorted((output_root / FOLDER).glob("*/")):
        with suppress(OSError):
            if (folder / STORE).read_text(encoding="utf-8") == store_id(uri):
                found.append(folder)
    return found


def send_left_over(client: "MlflowClient", folder: Path) -> None:
    """Send what a job that is over left, and remove it. Raises what MLflow raises when away."""
    lock = try_lock(folder / LOCK)
    if lock is None:
        return  # another job is at it
    try:
        sent = list(_lines(folder / SENT))
        runs = {folder.name: folder.name} | {one["run"]: one["id"] for one in sent if one["id"]}
        done = {one["number"] for one in sent}
        for call in _lines(folder / CALLS):
            if call["number"] not in done:
                _send_late(client, call, runs, folder)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()


def _send_late(
    client: "MlflowClient", call: dict[str, Any], runs: dict[str, str], folder: Path
) -> None:
    made = None
    try:
        made = calls.send(client, call, runs)
    except Exception as problem:
        if calls.is_away(problem):
            raise
        log.warning("MLflow refused a record (%s): %s", call["kind"], calls.reason(problem))
    if made is not None:
        runs[call["run"]] = made
    _note_sent(folder, call, made)


def _note_sent(folder: Path, call: dict[str, Any], made: str | None) -> None:
    with (folder / SENT).open("a", encoding="utf-8") as file:
        file.write(json.dumps({"number": call["number"], "run": call["run"], "id": made}) + "\n")


@contextmanager
def answering(uri: str) -> Iterator[None]:
    """Turn a store that does not answer into a `TrackingAwayError` of one line."""
    try:
        yield
    except Exception as problem:
        if not calls.is_away(problem):
            raise
        raise TrackingAwayError(
            f"MLflow at {without_credentials(uri)} does not answer ({calls.reason(problem)}): run "
            "the same command again when it does, or set another tracking.uri"
        ) from problem


def store_id(uri: str) -> str:
    """Which store: a hash, so that no password of its URI is written anywhere."""
    return hashlib.sha256(uri.encode()).hexdigest()


def _link(source: Any, place: Any) -> None:
    try:
        os.link(Path(source).resolve(), place)
    except OSError:
        shutil.copyfile(source, place)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON lines of a file up to one that a kill cut short."""
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
