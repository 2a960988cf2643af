"""Everything that can be refused before a model loads, whichever stage comes first."""

import hydra
from omegaconf import DictConfig, OmegaConf

from distill.artifacts import make_writable
from distill.errors import UserError
from distill.models.plan import plan_draft
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.candidates import trains
from distill.pipelines.grid import check_evaluation
from distill.pipelines.inputs import (
    check_at_least,
    draft_folder,
    output_root,
    plain,
    reference_folder,
    target_folder,
)
from distill.pipelines.reporting import check_run_folder
from distill.pipelines.self_prompt import check_prompting
from distill.pipelines.stage import asked_stage
from distill.ranks import is_rank_zero, processes
from distill.schema import DraftConfig
from distill.serving.export import export_dtype
from distill.teacher.codecs import Live
from distill.training.check import check_training
from distill.training.on_policy import WRITERS

BEFORE_TRAINING = ("prepare", "self_prompt", "generate", "cache", "codecs")
"""Stages that end before training: they need no budget."""

ROWS = ("train_rows", "validation_rows", "evaluation_rows")


def check_everything(cfg: DictConfig) -> None:
    """Refuse a job that cannot work.

    Raises:
        UserError: the first thing found, with its remedy.
    """
    make_writable(output_root(cfg))
    check_run_folder(cfg)
    _check_force(cfg)
    export_dtype(cfg.export.dtype)
    codec = hydra.utils.instantiate(cfg.signal)
    if not isinstance(codec, Live):
        codec.check()
    asked = asked_stage(cfg)
    if asked == "train" and cfg.draft.init == "ready":
        raise UserError("draft=ready is never trained: train it further with draft=pretrained")
    trained = trains(cfg) or asked == "train"
    if trained:
        trainer, _, _, budget = map(
            OmegaConf.to_object, (cfg.trainer, cfg.optimizer, cfg.schedule, cfg.budget)
        )
        check_training(trainer, None if asked in BEFORE_TRAINING else budget)  # pyright: ignore
        hydra.utils.instantiate(cfg.objective).check(codec)
        if (reference := reference_folder(cfg)) is not None:
            shared_vocabulary(target_folder(cfg), reference)
        _check_on_policy(cfg, live=isinstance(codec, Live))
    _check_continued(cfg)
    rows = {name: cfg.data[name] for name in ROWS if cfg.data[name] is not None}
    check_at_least(0, "data", rows)
    source = hydra.utils.instantiate(cfg.data.source)
    source.check()
    check_prompting(cfg, source)
    check_evaluation(cfg, source)
    shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    if trained and draft_folder(cfg) is None:
        plan_draft(target_folder(cfg), DraftConfig(**plain(cfg.draft)))


def _check_force(cfg: DictConfig) -> None:
    """Ranks that start together cannot tell the old artifact from the one that replaces it.

    A rank that Lightning starts comes after the old one is gone.
    """
    if cfg.force and is_rank_zero() and (number := processes()) > 1:
        raise UserError(
            f"force=true with {number} processes: the others would go on with what the first one "
            f"deletes; delete the stage's folder in {output_root(cfg) / 'artifacts'} instead"
        )


def _check_continued(cfg: DictConfig) -> None:
    share = cfg.data.continued
    if not 0.0 <= share <= 1.0:
        raise UserError(f"data.continued is {share}; use a share of the windows, 0 to 1")
    if share and not cfg.generate.enabled:
        raise UserError(
            "data.continued: nobody writes the text on; set generate.enabled=true, or "
            "data.continued=0"
        )


def _check_on_policy(cfg: DictConfig, live: bool) -> None:
    share = cfg.data.on_policy
    if not 0.0 <= share <= 1.0:
        raise UserError(f"data.on_policy is {share}; use a share of the rows, 0 to 1")
    if cfg.data.on_policy_by not in WRITERS:
        raise UserError(
            f"data.on_policy_by is {cfg.data.on_policy_by}; use one of {', '.join(WRITERS)}"
        )
    if share and not live:
        raise UserError(
            "data.on_policy: the target must judge what the draft just wrote; use signal=live"
        )
    if share and cfg.data.packing:
        raise UserError("data.on_policy answers rows one by one; set data.packing=false")
    if share and cfg.trainer.strategy == "fsdp":
        raise UserError("data.on_policy decodes with the whole draft; use trainer=ddp")
