"""What several stages read: the folders and identities of target and draft, and their loading."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from distill.artifacts import make_writable
from distill.errors import UserError
from distill.models.identity import ModelIdentity, identify
from distill.models.source import check_model_folder, resolve_model
from distill.ranks import local_rank
from distill.schema import ModelConfig, TargetConfig, TrackingConfig
from distill.tracking.client import connect
from distill.versions import hardware

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from distill.speculative.sampling import Sampling

ModelKey = tuple[str, str, str | None, bool]
"""Source, id, revision and trust_remote_code."""


def plain(node: Any) -> Any:
    """A config node as plain dicts, lists and scalars."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def output_root(cfg: DictConfig) -> Path:
    return Path(cfg.paths.output).expanduser().absolute()


def cache_root(cfg: DictConfig) -> Path:
    return Path(cfg.paths.cache).expanduser()


def target_config(cfg: DictConfig) -> TargetConfig:
    return TargetConfig(**plain(cfg.target))


def target_folder(cfg: DictConfig) -> Path:
    """The target as a local folder: fetched or converted on first use, checked, not loaded."""
    return model_folder(cfg, target_config(cfg), "target")


def target_name(cfg: DictConfig) -> str:
    """What a reader and a server call the target."""
    return cfg.target.serving_name or cfg.target.id


def target_identity(cfg: DictConfig) -> ModelIdentity:
    return identify(target_folder(cfg), target_config(cfg), cache_root(cfg))


def draft_folder(cfg: DictConfig) -> Path | None:
    """Where a `pretrained` or `ready` draft lies; None for a draft that is built."""
    model = draft_model(cfg)
    return None if model is None else model_folder(cfg, model, "draft")


def draft_model(cfg: DictConfig) -> ModelConfig | None:
    """Where a `pretrained` or `ready` draft comes from; None for a draft that is built.

    Raises:
        UserError: an unknown `draft.init`, or one that needs a model and has none.
    """
    from distill.models.draft import INITS

    init, existing = cfg.draft.init, ("pretrained", "ready")
    if init in INITS:
        return None
    if init not in existing:
        raise UserError(f"draft.init={init} is unknown: use {', '.join((*INITS, *existing))}")
    if cfg.draft.model is None:
        raise UserError(f"draft.init={init} needs a model: use draft={init} draft.model.id=NAME")
    return ModelConfig(**plain(cfg.draft.model))


def draft_settings(cfg: DictConfig) -> dict[str, Any]:
    """For a fingerprint: an existing draft by what it computes, not by its place.

    The place may come to hold another. Of a draft that is built its settings say all.
    """
    settings, model = plain(cfg.draft), draft_model(cfg)
    if model is not None:
        folder = model_folder(cfg, model, "draft")
        settings["model"] = identify(folder, model, cache_root(cfg)).sha256
    return settings


def model_folder(cfg: DictConfig, model: ModelConfig, role: str) -> Path:
    key = (model.source, model.id, model.revision, model.trust_remote_code)
    return _folder(key, cache_root(cfg), role, cfg.tracking.uri, output_root(cfg))


def fetch(
    model: ModelConfig, cache: Path, tracking: TrackingConfig, root: Path, *, weights: bool = True
) -> Path:
    """The model as a local folder; `models:/…` and `runs:/…` are those of the job's store."""
    if model.source == "mlflow":
        make_writable(root)
        connect(tracking, root)
    return resolve_model(model, cache, weights=weights)


def check_at_least(least: int, group: str, values: Mapping[str, Any]) -> None:
    """Refuse a number below `least`, or a list that is empty or holds one.

    Raises:
        UserError: naming `group` and the key.
    """
    for name, value in values.items():
        every = value if isinstance(value, list) else [value]
        if not every or min(every) < least:
            raise UserError(f"{group}.{name}={value}: give values from {least} up")


def reference_folder(cfg: DictConfig) -> Path | None:
    """The draft that `objective.weighting=learnable` compares with; None for any other."""
    if cfg.objective.get("weighting") != "learnable":
        return None
    return model_folder(cfg, ModelConfig("folder", cfg.objective.reference), "objective.reference")


def device(cfg: DictConfig) -> "torch.device":
    """Where models are loaded: what `trainer.accelerator` asks for, each rank on its own GPU."""
    import torch

    if cfg.trainer.accelerator == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank() % torch.cuda.device_count())


def machine(cfg: DictConfig) -> dict[str, Any]:
    """`hardware()` as far as this configuration computes on it: no GPU beside `trainer=cpu`."""
    found = hardware()
    return found if device(cfg).type == "cuda" else {**found, "gpus": []}


def samplings(cfg: DictConfig) -> "list[Sampling]":
    """The sampling settings of the evaluation; the first is the one that is served.

    Raises:
        UserError: there is none, a value is out of range, or two are the same.
    """
    from distill.evaluate.load import describe
    from distill.speculative.sampling import Sampling

    found = [Sampling(**plain(one)) for one in cfg.evaluate.samplings]
    names = [describe(one) for one in found]
    if not found or len(set(names)) < len(names):
        raise UserError(
            f"evaluate.samplings={names}: give at least one, each once, such as "
            "[{temperature:1},{temperature:0}]"
        )
    return found


def load_configured_target(cfg: DictConfig) -> "PreTrainedModel":
    from distill.models.target import load_target, pick_dtype

    place = device(cfg)
    return load_target(
        target_folder(cfg),
        dtype=pick_dtype(cfg.target.dtype, place),
        device=place,
        device_map=cfg.target.device_map,
        trust_remote_code=cfg.target.trust_remote_code,
    )


@lru_cache
def _folder(key: ModelKey, cache: Path, role: str, store: str | None, root: Path) -> Path:
    folder = fetch(ModelConfig(*key), cache, TrackingConfig(uri=store), root)
    check_model_folder(folder, role)
    return folder
