"""Stage `train`: a draft learns the target's distribution; candidates are written along the way."""

import gc
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import torch
from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus, token_counts
from distill.data.datamodule import CorpusDataModule
from distill.models.draft import initialise_draft, load_draft
from distill.models.identity import identify
from distill.models.importance import Calibration
from distill.models.plan import plan_draft
from distill.models.svd import HeadStatistics, measure_statistics
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import cache, generate, prepare
from distill.pipelines.decoders import decoding_callback, rollouts
from distill.pipelines.inputs import (
    cache_root,
    draft_folder,
    draft_settings,
    load_configured_target,
    plain,
    reference_folder,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.ranks import is_rank_zero
from distill.schema import DraftConfig, ModelConfig
from distill.teacher.cached import CachedTeacher
from distill.teacher.codecs import Live
from distill.teacher.hidden import check_packing
from distill.teacher.live import LiveTeacher
from distill.teacher.signals import Teacher
from distill.tracking.lightning import lightning_logger
from distill.tracking.runs import Run
from distill.training.callbacks.resume import RESUME, remove_resumable
from distill.training.run import train_draft

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
MADE_FROM_TARGET = ("svd", "pruned")
STATISTICS_ROWS = 64
"""Training rows that the target is run on for the draft's start: ten thousand tokens or more."""


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Folders `candidates/tokens-*`, each a draft that decodes.

    Raises:
        UserError: settings that cannot work, before a model is loaded.
    """
    corpus = generate.run(cfg)
    live = isinstance(hydra.utils.instantiate(cfg.signal), Live)
    signal = None if live else cache.run(cfg)
    target = target_identity(cfg)
    settings = {
        "draft": draft_settings(cfg),
        **{name: plain(cfg[name]) for name in ("optimizer", "schedule", "budget")},
        "objective": _objective_settings(cfg),
        "signal": cfg.signal._target_,  # its inputs say the same, but not to who reads a name
        "trainer": _trainer_settings(cfg),
        **{name: cfg.data[name] for name in prepare.BATCHING},
        "target": target.sha256,
        "dtype": cfg.target.dtype,
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        counts = _train(cfg, corpus, signal, folder, stage)
        # Trainer and module refer to each other: the target would stay beside the evaluation's own.
        gc.collect()
        # Names: the folder is renamed when it is whole.
        return counts | {"candidates": [Path(path).name for path in counts["candidates"]]}

    inputs = [corpus] if signal is None else [corpus, signal]
    trained = run_stage(cfg, "train", settings, inputs, produce, collective=True)
    if is_rank_zero():
        # Not before it is whole: a kill on the last step still goes on from them.
        remove_resumable(trained.path / RESUME)
    return trained


def _train(
    cfg: DictConfig, corpus: Artifact, signal: Artifact | None, folder: Path, stage: Run
) -> dict[str, Any]:
    vocabulary = shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    decodes = bool(cfg.trainer.decode_every)
    needed = signal is None or decodes or cfg.draft.init in MADE_FROM_TARGET
    target = load_configured_target(cfg) if needed else None
    draft, description = make_draft(cfg, target, corpus)
    log.info("draft:\n%s", description)
    teacher = _teacher(cfg, draft, target, signal, vocabulary.size)
    decoding = decoding_callback(cfg, corpus, target, vocabulary.size) if decodes else None
    on_policy = rollouts(cfg, target, vocabulary.size)
    del target  # a cached signal needs no more of it
    datamodule = CorpusDataModule(
        corpus.path,
        tokens_per_batch=cfg.trainer.tokens_per_batch,
        tokens_per_step=cfg.trainer.tokens_per_step,
        packing=cfg.data.packing,
        seed=cfg.seed,
    )
    return train_draft(
        draft,
        teacher,
        datamodule,
        hydra.utils.instantiate(cfg.objective),
        cfg.optimizer,
        cfg.schedule,
        cfg.trainer,
        cfg.budget,
        folder,
        vocabulary_size=vocabulary.size,
        target_folder=target_folder(cfg),
        on_policy=on_policy,
        logger=lightning_logger(stage),
        decoding=decoding,
        seed=cfg.seed,
    )


def _trainer_settings(cfg: DictConfig) -> dict[str, Any]:
    """What the training is: not how often it saves, nor how a decoding that is off would go."""
    settings = plain(cfg.trainer)
    del settings["resume_every_seconds"]
    if not settings["decode_every"]:
        return {name: value for name, value in settings.items() if not name.startswith("decode_")}
    return settings


def _objective_settings(cfg: DictConfig) -> dict[str, Any]:
    """A reference draft is what its weights are, wherever they lie."""
    settings, folder = plain(cfg.objective), reference_folder(cfg)
    if folder is None:
        return settings
    identity = identify(folder, ModelConfig("folder", str(folder)), cache_root(cfg))
    return settings | {"reference": identity.sha256}


def _teacher(
    cfg: DictConfig,
    draft: "PreTrainedModel",
    target: "PreTrainedModel | None",
    signal: Artifact | None,
    vocabulary_size: int,
) -> Teacher:
    """The cache or the target itself, once it is known that its models can take the batches."""
    if cfg.data.packing:
        check_packing(draft)
    if signal is not None:
        return CachedTeacher(signal.path, hydra.utils.instantiate(cfg.signal))
    assert target is not None
    if cfg.data.packing:
        check_packing(target)
    return LiveTeacher(target, vocabulary_size, compiled=cfg.trainer.compile_target)


def make_draft(
    cfg: DictConfig, target: "PreTrainedModel | None", corpus: Artifact
) -> tuple["PreTrainedModel", str]:
    """The draft before training, in float32, and its plan in words.

    target: asked only for a draft that is made from it (`MADE_FROM_TARGET`).
    """
    if (folder := draft_folder(cfg)) is not None:
        draft = load_draft(folder, dtype=torch.float32, device="cpu")
        parameters = sum(p.numel() for p in draft.parameters())
        return draft, f"{cfg.draft.model.id}: {parameters / 1e6:.2f} M parameters"
    plan = plan_draft(target_folder(cfg), DraftConfig(**plain(cfg.draft)))
    rows = load_corpus(corpus.path)["train"]
    sample = rows.select(range(min(STATISTICS_ROWS, len(rows)))).to_list()
    sequences = [torch.tensor([row["input_ids"]]) for row in sample]
    statistics, calibration = None, None
    if cfg.draft.init in MADE_FROM_TARGET:
        assert target is not None
        if cfg.draft.init == "svd":
            statistics = _statistics(target, rows, sequences)
        else:
            calibration = Calibration(target, sequences)
    draft = initialise_draft(
        plan, cfg.draft.init, target_folder(cfg), cfg.seed, statistics, calibration
    )
    return draft, plan.table()


def _statistics(
    target: "PreTrainedModel", rows: "Dataset", sequences: list[torch.Tensor]
) -> HeadStatistics:
    """What the draft will have to predict, from training rows only: counts and hidden states."""
    counts = torch.from_numpy(token_counts(rows, target.config.get_text_config().vocab_size))
    return measure_statistics(target, sequences, counts)
