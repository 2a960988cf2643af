"""A stage's output folder: fingerprinted, committed whole, resumable until then.

`<output>/artifacts/<stage>/<fingerprint>/` appears only when it is complete. While a stage works,
the folder is called `<fingerprint>.partial` and survives a kill, so that the stage goes on. A
finished folder that was damaged later becomes a partial one again, without what is damaged.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from distill.differences import differences, flat, listed
from distill.errors import UserError
from distill.files import discard, flush, flush_tree, write_json
from distill.integrity import damage, record, restamped
from distill.locks import locked
from distill.ranks import is_rank_zero
from distill.shards import ClosedError
from distill.versions import versions
from distill.watch import Watch, failure_noted, lock_of

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"
RESULTS = 1
"""Version of what the code makes of the same settings. It is raised by hand when a mistake in a
loss, in the engine or in a format is mended, so that no artifact made with the mistake is found
again. Version 1 is no part of the fingerprint: artifacts older than this number stay valid."""
POLL_SECONDS = 0.5
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
    identity: dict[str, Any] = {
        "stage": stage,
        "settings": settings,
        "inputs": [i.fingerprint for i in inputs],
    }
    if RESULTS > 1:
        identity["results"] = RESULTS
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
    pieces: Sequence[str] = (),
    scratch: Sequence[str] = (),
) -> Artifact:
    """Return the stage's artifact, making it only when it is not there yet.

    An artifact that is there but damaged is named in a warning and made again: its undamaged
    `pieces` stay, and without any it is put aside as `<fingerprint>.damaged`.

    Args:
        stage: folder name of the stage, such as `train`.
        root: output root of all runs.
        settings: plain values that decide the content (JSON-able).
        inputs: artifacts the stage reads.
        produce: fills the folder and returns its counts; may find its own unfinished work there.
        force: redo even when up to date.
        collective: all ranks work on it together; else rank zero does and the others wait.
        pieces: patterns of files that `produce` makes one by one and leaves where it finds them,
            such as `shards/*.parquet`; from them it makes all else again.
        scratch: names in the folder that serve only an unfinished stage; removed after it.

    Raises:
        UserError: the output root cannot be written.
    """
    digest = fingerprint(stage, settings, inputs)
    folder = root / "artifacts" / stage / digest[:12]
    make_writable(folder.parent)
    if not is_rank_zero():
        return _follow(stage, folder, produce if collective else None)
    # Jobs of one sweep share stages: the second waits for the first and finds the work done.
    with locked(lock_of(folder), f"at the same stage, {stage}"), failure_noted(folder):
        if force:
            discard(_partial(folder))
            discard(folder)
        artifact = _find(stage, folder, pieces)
        if artifact is None:
            if not force and not _partial(folder).exists():
                _explain(stage, folder, settings, inputs)
            artifact = _make(stage, folder, digest, settings, inputs, produce, scratch)
        else:
            log.info("%s: up to date (%s)", stage, folder)
        for name in scratch:
            discard(folder / name)
        return artifact


def load(folder: Path) -> Artifact:
    """Read a finished artifact.

    Raises:
        UserError: the folder holds no finished stage, or its manifest cannot be read.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        _check_shape(manifest)
        return Artifact(folder, manifest["fingerprint"], manifest)
    except FileNotFoundError as error:
        raise UserError(
            f"{folder} is not a finished stage: it has no {MANIFEST}; run the stage again"
        ) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(
            f"{folder / MANIFEST} is damaged ({error or 'no object'}): run the stage again"
        ) from error


def _check_shape(manifest: Any) -> None:
    """Raise TypeError or KeyError for what is no manifest of ours."""
    kinds = {"stage": str, "fingerprint": str, "settings": dict, "inputs": dict, "counts": dict}
    for name, kind in kinds.items():
        if not isinstance(manifest[name], kind):
            raise TypeError(f"{name} is no {kind.__name__}")
    if not isinstance(manifest.get("files", {}), dict):
        raise TypeError("files is no dict")


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


def _find(stage: str, folder: Path, pieces: Sequence[str]) -> Artifact | None:
    """The finished artifact, or None where there is none, or none that is whole."""
    if not folder.exists():
        return None
    try:
        artifact = load(folder)
    except UserError as unreadable:
        # As after a kill just before the manifest is written: what is there is kept.
        log.warning("%s: %s; goes on from what the folder holds", stage, unreadable)
        _reopen(folder)
        return None
    written = artifact.manifest.get("files", {})  # none in artifacts of before it was recorded
    bad = damage(folder, written)
    if bad:
        _take_apart(stage, folder, written, bad, pieces)
        return None
    if (stamped := restamped(folder, written)) != written:
        # Copied or touched, and found whole: it need not be read for that again.
        artifact.manifest["files"] = stamped
        if os.access(folder, os.W_OK):
            write_json(folder / MANIFEST, artifact.manifest)
    return artifact


def _take_apart(
    stage: str,
    folder: Path,
    written: Mapping[str, Any],
    bad: Mapping[str, str],
    pieces: Sequence[str],
) -> None:
    named = listed([f"{name} {reason}" for name, reason in bad.items()])
    kept = {
        name
        for name in written
        if name not in bad and any(fnmatch(name, pattern) for pattern in pieces)
    }
    if not kept:
        aside = folder.with_suffix(".damaged")
        log.warning("%s: %s (%s): made again; the rest is in %s", stage, named, folder, aside.name)
        discard(aside)
        folder.replace(aside)
        return
    log.warning("%s: %s (%s): made again; %d pieces stay", stage, named, folder, len(kept))
    # The manifest goes last: until then a kill leaves a folder that is found damaged again.
    for name in written:
        if name not in kept:
            (folder / name).unlink(missing_ok=True)
    for place in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(place.iterdir()):
            place.rmdir()
    _reopen(folder)


def _reopen(folder: Path) -> None:
    """Make a finished folder an unfinished one."""
    discard(_partial(folder))
    (folder / MANIFEST).unlink(missing_ok=True)
    folder.replace(_partial(folder))


def _make(
    stage: str,
    folder: Path,
    digest: str,
    settings: Mapping[str, Any],
    inputs: Sequence[Artifact],
    produce: Produce,
    scratch: Sequence[str],
) -> Artifact:
    partial = _partial(folder)
    log.info("%s: %s (%s)", stage, "going on" if partial.exists() else "starting", folder)
    partial.mkdir(exist_ok=True)
    started = time.monotonic()
    counts = produce(partial)
    manifest = {
        "stage": stage,
        "fingerprint": digest,
        "results": RESULTS,
        "settings": settings,
        "inputs": {i.manifest["stage"]: i.fingerprint for i in inputs},
        "counts": counts,
        "seconds": round(time.monotonic() - started, 3),
        "versions": versions(),
        "files": record(partial, without=scratch),
    }
    flush_tree(partial)
    write_json(partial / MANIFEST, manifest)
    partial.replace(folder)
    flush(folder.parent)
    return replace(load(folder), fresh=True)


def _follow(stage: str, folder: Path, produce: Produce | None) -> Artifact:
    """A rank other than zero: work along, then wait until rank zero has put the folder in place.

    Raises:
        UserError: rank zero failed or was killed.
    """
    watch = Watch(stage, folder)
    while not _is_whole(folder):
        watch.look()
        if produce is not None and _partial(folder).exists():
            try:
                produce(_partial(folder))
                produce = None
            except ClosedError:
                pass  # rank zero comes again, or this rank came too late
        time.sleep(POLL_SECONDS)
    return load(folder)


def _is_whole(folder: Path) -> bool:
    """Whether a finished folder is there, by what rank zero goes by."""
    try:
        return not damage(folder, load(folder).manifest.get("files", {}))
    except UserError:
        return False


def _explain(
    stage: str, folder: Path, settings: Mapping[str, Any], inputs: Sequence[Artifact]
) -> None:
    """Log in one line how the stage differs from the most similar one that is finished."""
    # As a manifest holds them: lists for tuples, text for what JSON has no form for.
    plain = json.loads(json.dumps(dict(settings), default=str))
    wanted = {**flat(plain), **{i.manifest["stage"]: i.fingerprint for i in inputs}}
    found = []
    for manifest in _finished(folder.parent):
        had = {**flat(manifest["settings"]), **manifest["inputs"]}
        what = list(differences(had, wanted))
        if (version := manifest.get("results", 1)) != RESULTS:
            what.append(f"results have version {RESULTS} (had {version})")
        found.append(what)
    if nearest := min(found, key=len, default=None):
        log.info("%s: made anew, because %s", stage, listed(nearest))


def _finished(place: Path) -> Iterator[dict[str, Any]]:
    """The manifests of a stage's finished artifacts."""
    for path in sorted(place.glob(f"*/{MANIFEST}")):
        if path.parent.suffix:  # .damaged
            continue
        try:
            yield load(path.parent).manifest
        except UserError:
            continue


def _partial(folder: Path) -> Path:
    return folder.with_suffix(".partial")


def _unwritable(folder: Path, reason: str | None) -> UserError:
    return UserError(
        f"cannot write to {folder} ({reason}): choose another place with paths.output=/some/folder"
    )
