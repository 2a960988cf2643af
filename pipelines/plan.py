"""A dry run: vocabulary, draft and memory from configs and tokenizers; no weights needed."""

import sys
from pathlib import Path

import torch
from omegaconf import DictConfig

from distill.losses.chunked import chunk_tokens
from distill.models.memory import plan_memory
from distill.models.plan import DraftPlan, plan_draft, plan_from_folder
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.inputs import (
    cache_root,
    draft_model,
    fetch,
    output_root,
    plain,
    target_config,
)
from distill.schema import DraftConfig, TrackingConfig


def run(cfg: DictConfig) -> DraftPlan:
    """Print the plan of the job that the same configuration would run.

    Raises:
        UserError: tokenizers that differ, or sizes that cannot be built.
    """
    place = cache_root(cfg), TrackingConfig(**plain(cfg.tracking)), output_root(cfg)
    target = fetch(target_config(cfg), *place, weights=False)
    model = draft_model(cfg)
    draft = None if model is None else fetch(model, *place, weights=False)
    vocabulary = shared_vocabulary(target, draft)
    plan = planned(cfg, target, draft)
    devices = _devices(cfg)
    memory = plan_memory(
        plan,
        tokens_per_batch=cfg.trainer.tokens_per_batch,
        chunk_size=chunk_tokens(plan.config.hidden_size, cfg.objective.get("chunk_size")),
        target_shards=devices if cfg.target.device_map or cfg.trainer.strategy == "fsdp" else 1,
        draft_shards=devices if cfg.trainer.strategy == "fsdp" else 1,
    )
    sys.stdout.write(
        f"shared vocabulary       {vocabulary.size} ids\n{plan.table()}\n"
        f"over {devices} device(s) a node\n{memory.table()}\n"
    )
    return plan


def planned(cfg: DictConfig, target: Path, draft: Path | None) -> DraftPlan:
    """The draft that is to be made, or that lies in a folder; both folders need no weights."""
    if draft is None:
        return plan_draft(target, DraftConfig(**plain(cfg.draft)))
    return plan_from_folder(target, draft)


def _devices(cfg: DictConfig) -> int:
    """GPUs a node: those asked for, or those seen here."""
    seen = max(1, torch.cuda.device_count())
    return (
        seen if cfg.target.device_map or cfg.trainer.devices == "auto" else int(cfg.trainer.devices)
    )
