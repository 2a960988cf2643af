"""The drafts to measure: those named, the one that is ready, or a training's checkpoints."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import MANIFEST
from distill.errors import UserError
from distill.models.identity import identify
from distill.pipelines import train
from distill.pipelines.inputs import cache_root, draft_folder, model_folder
from distill.pipelines.labels import labels
from distill.schema import ModelConfig
from distill.training.callbacks.candidates import (
    CANDIDATES,
    METRICS,
    candidate_folders,
    training_of,
)


@dataclass(frozen=True)
class Candidate:
    """sha256: of what it computes, see `ModelIdentity`.

    metrics: what its training measured on its validation rows; empty for a draft from elsewhere.
    training: the folder of its training. None if that is not known, as of a checkpoint that was
    moved: its neighbours may have other validation rows.
    """

    name: str
    folder: Path
    sha256: str
    weights_sha256: str
    parameters: int
    metrics: dict[str, Any]
    training: Path | None


def find_candidates(cfg: DictConfig) -> list[Candidate]:
    """In the order in which they were trained or named.

    Raises:
        UserError: a place that holds no draft, or one draft twice.
    """
    if cfg.evaluate.candidates:
        folders = [folder for place in cfg.evaluate.candidates for folder in _drafts(cfg, place)]
    elif not trains(cfg):
        folder = draft_folder(cfg)
        assert folder is not None  # a draft that is ready
        folders = [folder]
    else:
        folders = candidate_folders(train.run(cfg).path / CANDIDATES)
    names = _names(folders)
    return [_candidate(name, folder, cfg) for name, folder in zip(names, folders, strict=True)]


def trains(cfg: DictConfig) -> bool:
    """Whether the drafts to measure come from this configuration's own training."""
    return not cfg.evaluate.candidates and cfg.draft.init != "ready"


def named_folders(cfg: DictConfig) -> list[Path]:
    """Drafts in evaluate.candidates that are folders here: they can be checked before any work."""
    places = [place for place in cfg.evaluate.candidates if not _registered(place)]
    return [folder for place in places for folder in _drafts(cfg, place)]


def _drafts(cfg: DictConfig, place: str) -> list[Path]:
    """The draft at a place, or all of a training's folder, or of a folder of trainings."""
    root = Path(place).expanduser()
    if not _registered(place) and root.is_dir() and not (root / "config.json").exists():
        runs = sorted(path.parent for path in root.glob(f"*/{MANIFEST}"))
        of_runs = [draft for run in runs for draft in candidate_folders(run / CANDIDATES)]
        found = candidate_folders(root) + candidate_folders(root / CANDIDATES) + of_runs
        if found:
            return found
    source = "mlflow" if _registered(place) else "folder"
    return [model_folder(cfg, ModelConfig(source, place), "candidate")]


def _registered(place: str) -> bool:
    return place.startswith(("models:/", "runs:/"))


def _names(folders: list[Path]) -> list[str]:
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


def _run(folder: Path) -> Path:
    return training_of(folder) or folder.parent


def _candidate(name: str, folder: Path, cfg: DictConfig) -> Candidate:
    identity = identify(folder, ModelConfig("folder", str(folder)), cache_root(cfg))
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
