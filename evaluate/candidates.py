"""The drafts to measure: where they lie, what they are called and what their training knows."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from distill.artifacts import MANIFEST
from distill.errors import UserError
from distill.evaluate.correlation import HeldOutScores
from distill.evaluate.labels import labels
from distill.models.identity import ModelIdentity
from distill.schema import ModelConfig
from distill.training.callbacks.candidates import (
    CANDIDATES,
    METRICS,
    candidate_folders,
    training_of,
)


@dataclass(frozen=True)
class Candidate:
    """A draft that is measured.

    sha256: of what it computes, see `ModelIdentity`. metrics: what its training measured on its
    validation rows; empty for a draft from elsewhere. training: the folder of its training; None if
    that is not known, as of a checkpoint that was moved: its neighbours may have other validation
    rows.
    """

    name: str
    folder: Path
    sha256: str
    weights_sha256: str
    parameters: int
    metrics: dict[str, Any]
    training: Path | None


def make_candidates(
    folders: Sequence[Path], identify: Callable[[Path], ModelIdentity]
) -> list[Candidate]:
    """Candidates in the order of their folders; UserError for one draft twice."""
    names = candidate_names(folders)
    return [
        _candidate(name, folder, identify(folder))
        for name, folder in zip(names, folders, strict=True)
    ]


def drafts_at(place: str, fetch: Callable[[ModelConfig], Path]) -> list[Path]:
    """The draft at a place, or all of a training's folder, or of a folder of trainings.

    fetch: makes a folder of a registered model, and checks one that is a folder already.
    """
    root = Path(place).expanduser()
    if not is_registered(place) and root.is_dir() and not (root / "config.json").exists():
        runs = sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))
        of_runs = [draft for run in runs for draft in candidate_folders(run / CANDIDATES)]
        found = candidate_folders(root) + candidate_folders(root / CANDIDATES) + of_runs
        if found:
            return found
    return [fetch(ModelConfig("mlflow" if is_registered(place) else "folder", place))]


def is_registered(place: str) -> bool:
    return place.startswith(("models:/", "runs:/"))


def candidate_names(folders: Sequence[Path]) -> list[str]:
    """Folder names; where two trainings wrote the same one, after what tells them apart."""
    often = Counter(folder.name for folder in folders)
    trainings = labels(_run(folder) for folder in folders)
    names = [
        folder.name if often[folder.name] == 1 else f"{trainings[_run(folder)]}/{folder.name}"
        for folder in folders
    ]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(
            f"evaluate.candidates: two drafts are called {twice}; name each once or rename one"
        )
    return names


def scores_of_training(candidates: Sequence[Candidate]) -> dict[str, HeldOutScores] | None:
    """What metrics.json says of each, where one training wrote all of them; else None."""
    names = [field.name for field in fields(HeldOutScores)]
    trainings = {one.training for one in candidates}
    if (
        trainings == {None}
        or len(trainings) > 1
        or any(not {*names} <= one.metrics.keys() for one in candidates)
    ):
        return None
    return {
        one.name: HeldOutScores(**{name: one.metrics[name] for name in names}) for one in candidates
    }


def _run(folder: Path) -> Path:
    return training_of(folder) or folder.parent


def _candidate(name: str, folder: Path, identity: ModelIdentity) -> Candidate:
    path = folder / METRICS
    metrics = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Candidate(
        name,
        folder,
        identity.sha256,
        identity.weights_sha256,
        identity.parameters,
        metrics,
        training_of(folder.resolve()) if metrics else None,
    )
