"""The drafts that a probe times: sizes to try, built with random weights, and one that exists."""

from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from distill.errors import UserError
from distill.models.draft import initialise_draft, load_draft
from distill.models.plan import DraftPlan, plan_draft, plan_from_folder
from distill.models.target import context_length
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.inputs import (
    check_at_least,
    draft_folder,
    plain,
    samplings,
    target_folder,
)
from distill.schema import DraftConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_probe(cfg: DictConfig) -> None:
    """Refuse loads that cannot be timed, before any model loads."""
    samplings(cfg)
    counts = ("num_draft_tokens", "batch_sizes", "contexts", "repetitions", "tokens")
    check_at_least(1, "probe", {name: plain(cfg.probe[name]) for name in counts})
    if not all(0 < alpha <= 1 for alpha in cfg.probe.alphas):
        raise UserError(f"probe.alphas={list(cfg.probe.alphas)}: give values above 0 and up to 1")
    if cfg.probe.teraflops <= 0:
        raise UserError(f"probe.teraflops={cfg.probe.teraflops}: give a rate above 0")
    longest = context_length(target_folder(cfg))
    if max(cfg.probe.contexts) >= longest:
        raise UserError(f"probe.contexts={list(cfg.probe.contexts)}: the target holds {longest}")


def plan_drafts(cfg: DictConfig) -> dict[str, DraftPlan]:
    """By name: the configured draft that exists, if any, then every size to try."""
    plans: dict[str, DraftPlan] = {}
    if (folder := draft_folder(cfg)) is not None:
        plans[folder.name] = plan_from_folder(target_folder(cfg), folder)
    for size in cfg.probe.drafts:
        plan = plan_draft(target_folder(cfg), DraftConfig(init="scratch", **plain(size)))
        plans[f"{plan.config.num_hidden_layers} × {plan.config.hidden_size}"] = plan
    if not plans:
        raise UserError("probe.drafts is empty: give sizes, such as [{parameter_ratio:0.1}]")
    return plans


def load_or_make(
    cfg: DictConfig, name: str, plan: DraftPlan, target: "PreTrainedModel"
) -> "PreTrainedModel":
    """The draft as it would be served: the target's dtype and device."""
    folder = draft_folder(cfg)
    if folder is not None and folder.name == name:
        return load_draft(folder, dtype=target.dtype, device=target.device)
    draft = initialise_draft(plan, "scratch", Path(), cfg.seed)
    return draft.to(target.device, target.dtype).eval()  # pyright: ignore


def shared_ids(cfg: DictConfig) -> int:
    return shared_vocabulary(target_folder(cfg), draft_folder(cfg)).size
