"""A stage's output folder: fingerprinted, committed whole, resumable until then.

`<output>/artifacts/<stage>/<fingerprint>/` appears only when it is complete. While a stage works,
the folder is called `<fingerprint>.partial` and survives a kill, so that the stage goes on.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from distill.errors import UserError
from distill.files import write_json
from distill.ranks import is_rank_zero
from distill.versions import versions

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
Produce = Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Artifact:
    """A finished stage: its folder, its fingerprint and what its manifest tells."""

    path: Path
    fingerprint: str
    manifest: dict[str, Any]
    fresh: bool = False
    """Made by this very call, not found."""

    @property
    def counts(self) -> dict[str, Any]:
        """What the stage itself reported when it was made."""
        return self.manifest["counts"]


def fingerprint(stage: str, settings: Mapping[str, Any], inputs: Sequence[Artifact]) -> str:
    """Hash of everything that decides a stage's content: its settings and its inputs' fingerprints.

    Library versions are in the manifest but not in the hash: an upgrade must not silently throw
    away hours of training. `force=true` redoes a stage.
    """
    identity = {"stage": stage, "settings": settings, "inputs": [i.fingerprint for i in inputs]}
    text = json.dumps(identity, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def build(
    stage: str,
    root: Path,
    settings: Mapping[str, Any],
    inputs: Sequence[Artifact],
    produce: Produce,
    *,
    force: bool = False,
    collective: bool = False,
) -> Artifact:
    """Return the stage's artifact, making it only when it is not there yet.

    Args:
        stage: folder name of the stage, such as `train`.
        root: output root of all runs.
        settings: plain values that decide the content (JSON-able).
        inputs: artifacts the stage reads.
        produce: fills the folder and returns its counts; may find its own unfinished work there.
        force: redo even when up to date.
        collective: all ranks work on it together; else rank zero does and the others wait.

    Raises:
        UserError: the output root cannot be written.
    """
    digest = fingerprint(stage, settings, inputs)
    folder = root / "artifacts" / stage / digest[:12]
    make_writable(folder.parent)
    if not is_rank_zero():
        return _follow(folder, produce if collective else None)
    # Jobs of one sweep share stages: the second waits for the first and finds the work done.
    with FileLock(folder.with_suffix(".lock")):
        if force:
            _discard(folder)
        elif (folder / MANIFEST).exists():
            log.info("%s: up to date (%s)", stage, folder)
            return load(folder)
        return _make(stage, folder, digest, settings, inputs, produce)


def load(folder: Path) -> Artifact:
    """Read a finished artifact.

    Raises:
        UserError: the folder holds no finished stage.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} is not a finished stage: it has no {MANIFEST}; run the stage again"
        ) from error
    return Artifact(folder, manifest["fingerprint"], manifest)


def make_writable(folder: Path) -> None:
    """Create the folder.

    Raises:
        UserError: it cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error.strerror) from error
    if not os.access(folder, os.W_OK):
        raise _unwritable(folder, "permission denied")


def _make(
    stage: str,
    folder: Path,
    digest: str,
    settings: Mapping[str, Any],
    inputs: Sequence[Artifact],
    produce: Produce,
) -> Artifact:
    partial = folder.with_suffix(".partial")
    log.info("%s: %s (%s)", stage, "going on" if partial.exists() else "starting", folder)
    partial.mkdir(exist_ok=True)
    started = time.monotonic()
    counts = produce(partial)
    manifest = {
        "stage": stage,
        "fingerprint": digest,
        "settings": settings,
        "inputs": {i.manifest["stage"]: i.fingerprint for i in inputs},
        "counts": counts,
        "seconds": round(time.monotonic() - started, 3),
        "versions": versions(),
    }
    write_json(partial / MANIFEST, manifest)
    partial.replace(folder)
    return replace(load(folder), fresh=True)


def _follow(folder: Path, produce: Produce | None) -> Artifact:
    """A rank other than zero: work along, then wait until rank zero has put the folder in place.

    When rank zero fails, the launcher ends this process too.
    """
    if produce and not (folder / MANIFEST).exists():
        produce(folder.with_suffix(".partial"))
    while not (folder / MANIFEST).exists():
        time.sleep(0.5)
    return load(folder)


def _discard(folder: Path) -> None:
    shutil.rmtree(folder.with_suffix(".partial"), ignore_errors=True)
    if folder.exists():
        # Renamed first: a kill while deleting must not leave a folder that looks finished.
        doomed = folder.with_suffix(".discarded")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.replace(doomed)
        shutil.rmtree(doomed)


def _unwritable(folder: Path, reason: str | None) -> UserError:
    return UserError(
        f"cannot write to {folder} ({reason}): choose another place with paths.output=/some/folder"
    )
