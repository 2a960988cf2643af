"""What several stages read: the target's folder and identity, the draft's, the settings a fingerprint holds."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from distill.models.identity import ModelIdentity, identify
from distill.models.source import check_model_folder, resolve_model
from distill.schema import ModelConfig


def output_root(cfg: DictConfig) -> Path:
    return Path(cfg.paths.output).expanduser().absolute()


def target_folder(cfg: DictConfig) -> Path:
    """The target as a local Hugging Face folder, fetched or converted on first use, checked, not loaded."""
    return _folder(cfg, cfg.target, "target")


def draft_folder(cfg: DictConfig) -> Path | None:
    """The folder a pretrained or ready draft comes from; None for a draft that is built."""
    if cfg.draft.init not in ("pretrained", "ready"):
        return None
    return _folder(cfg, cfg.draft.model, "draft")


def target_identity(cfg: DictConfig) -> ModelIdentity:
    return identify(target_folder(cfg), _model_config(cfg.target), plain(cfg.target.chat_template_kwargs))


def plain(node: Any) -> Any:
    """A config node as plain dicts, lists and scalars."""
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _model_config(node: DictConfig) -> ModelConfig:
    return ModelConfig(node.source, node.id, node.revision, node.trust_remote_code)


def _folder(cfg: DictConfig, node: DictConfig, role: str) -> Path:
    model = _model_config(node)
    key = (model.source, model.id, model.revision, model.trust_remote_code)
    return _resolve(key, Path(cfg.paths.cache).expanduser(), role)


@lru_cache
def _resolve(key: tuple[str, str, str | None, bool], cache: Path, role: str) -> Path:
    folder = resolve_model(ModelConfig(*key), cache)
    check_model_folder(folder, role)
    return folder
