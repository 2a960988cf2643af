"""The drafts to measure: those named, the one that is ready, or a training's checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from distill.errors import UserError
from distill.models.identity import identify
from distill.pipelines import train
from distill.pipelines.inputs import cache_root, model_folder, plain
from distill.schema import ModelConfig


@dataclass(frozen=True)
class Candidate:
    name: str
    folder: Path
    weights_sha256: str
    parameters: int


def find_candidates(cfg: DictConfig) -> list[Candidate]:
    """In the order in which they were trained or named.

    Raises:
        UserError: a place that holds no draft, or one name twice.
    """
    if cfg.evaluate.candidates:
        models = [_model_at(place) for place in cfg.evaluate.candidates]
        folders = {_name(model): model_folder(cfg, model, "candidate") for model in models}
        if len(folders) < len(models):
            raise UserError(
                "evaluate.candidates: two places end in the same name; rename one of the folders"
            )
    elif not trains(cfg):
        folder = model_folder(cfg, ModelConfig(**plain(cfg.draft.model)), "draft")
        folders = {folder.name: folder}
    else:
        trained = train.run(cfg)
        folders = {path.name: path for path in sorted((trained.path / "candidates").iterdir())}
    return [_candidate(name, folder, cfg) for name, folder in folders.items()]


def trains(cfg: DictConfig) -> bool:
    """Whether the drafts to measure come from this configuration's own training."""
    return not cfg.evaluate.candidates and cfg.draft.init != "ready"


def _model_at(place: str) -> ModelConfig:
    registered = place.startswith(("models:/", "runs:/"))
    return ModelConfig("mlflow" if registered else "folder", place)


def _name(model: ModelConfig) -> str:
    return Path(model.id).name


def _candidate(name: str, folder: Path, cfg: DictConfig) -> Candidate:
    identity = identify(folder, ModelConfig("folder", str(folder)), cache_root(cfg))
    return Candidate(name, folder, identity.weights_sha256, identity.parameters)
