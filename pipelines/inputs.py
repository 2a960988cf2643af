"""What several stages read: the folders and identities of target and draft, and their loading."""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from distill.errors import UserError
from distill.models.identity import ModelIdentity, identify
from distill.models.source import check_model_folder, resolve_model
from distill.ranks import local_rank
from distill.schema import ModelConfig, TargetConfig

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from distill.speculative import Sampling


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
    return _folder(_model(cfg.target), cache_root(cfg), "target")


def target_identity(cfg: DictConfig) -> ModelIdentity:
    return identify(target_folder(cfg), target_config(cfg), cache_root(cfg))


def draft_folder(cfg: DictConfig) -> Path | None:
    """Where a `pretrained` or `ready` draft comes from; None for a draft that is built."""
    if cfg.draft.init not in ("pretrained", "ready"):
        return None
    return model_folder(cfg, ModelConfig(**plain(cfg.draft.model)), "draft")


def model_folder(cfg: DictConfig, model: ModelConfig, role: str) -> Path:
    key = (model.source, model.id, model.revision, model.trust_remote_code)
    return _folder(key, cache_root(cfg), role)


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


def samplings(cfg: DictConfig) -> "list[Sampling]":
    """The sampling settings of the evaluation; the first is the one that is served.

    Raises:
        UserError: there is none, a value is out of range, or two are the same.
    """
    from distill.evaluate.load import describe
    from distill.speculative import Sampling

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


def _model(node: DictConfig) -> tuple[str, str, str | None, bool]:
    return node.source, node.id, node.revision, node.trust_remote_code


@lru_cache
def _folder(key: tuple[str, str, str | None, bool], cache: Path, role: str) -> Path:
    folder = resolve_model(ModelConfig(*key), cache)
    check_model_folder(folder, role)
    return folder
