"""Stage `train`: a draft learns the target's distribution; candidates are written along the way."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
import torch
from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus, token_counts
from distill.data.datamodule import CorpusDataModule
from distill.errors import UserError
from distill.models.draft import initialise_draft, load_draft
from distill.models.importance import Calibration
from distill.models.plan import plan_draft
from distill.models.svd import HeadStatistics, measure_statistics
from distill.models.target import context_length, eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate
from distill.pipelines.inputs import (
    draft_folder,
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.schema import DraftConfig
from distill.teacher.live import LiveTeacher
from distill.tracking.lightning import lightning_logger
from distill.tracking.runs import Run
from distill.training.callbacks.decoding import Decoding
from distill.training.run import train_draft

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
STATISTICS_ROWS = 64
"""Training rows that the target is run on for the draft's start: ten thousand tokens or more."""


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Folders `candidates/tokens-*`, each a draft that decodes.

    Raises:
        UserError: settings that cannot work, before a model is loaded.
    """
    corpus = generate.run(cfg)
    target = target_identity(cfg)
    settings = {
        **{
            name: plain(cfg[name])
            for name in ("draft", "objective", "optimizer", "schedule", "budget")
        },
        "trainer": _trainer_settings(cfg),
        "target": target.weights_sha256,
        "dtype": cfg.target.dtype,
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        return _train(cfg, corpus, folder, stage)

    return run_stage(cfg, "train", settings, [corpus], produce, collective=True)


def _train(cfg: DictConfig, corpus: Artifact, folder: Path, stage: Run) -> dict[str, Any]:
    vocabulary = shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    model = load_configured_target(cfg)
    draft, description = make_draft(cfg, model, corpus)
    log.info("draft:\n%s", description)
    datamodule = CorpusDataModule(
        corpus.path,
        tokens_per_batch=cfg.trainer.tokens_per_batch,
        tokens_per_step=cfg.trainer.tokens_per_step,
        seed=cfg.seed,
    )
    return train_draft(
        draft,
        LiveTeacher(model, vocabulary.size),
        datamodule,
        hydra.utils.instantiate(cfg.objective),
        cfg.optimizer,
        cfg.schedule,
        cfg.trainer,
        cfg.budget,
        folder,
        vocabulary_size=vocabulary.size,
        target_folder=target_folder(cfg),
        logger=lightning_logger(stage),
        decoding=_decoding(cfg, corpus, model, vocabulary.size),
        seed=cfg.seed,
    )


def _trainer_settings(cfg: DictConfig) -> dict[str, Any]:
    """Without decoding, how it would be done is no part of what the training is."""
    settings = plain(cfg.trainer)
    if not settings["decode_every"]:
        return {name: value for name, value in settings.items() if not name.startswith("decode_")}
    return settings


def _decoding(
    cfg: DictConfig, corpus: Artifact, target: "PreTrainedModel", vocabulary_size: int
) -> Decoding | None:
    """The callback for the first validation prompts; None where training decodes nothing.

    Raw text has no prompt of its own: its first tokens are one, as in the evaluation.
    """
    trainer = cfg.trainer
    if not trainer.decode_every:
        return None
    longest = context_length(target_folder(cfg)) - trainer.decode_max_new_tokens
    rows = load_corpus(corpus.path)["validation"].to_list()
    prompts = [row["input_ids"][: row["prompt_length"] or cfg.data.prompt_tokens] for row in rows]
    prompts = [tokens for tokens in prompts if len(tokens) <= longest][: trainer.decode_prompts]
    if len(prompts) < trainer.decode_prompts:
        raise UserError(
            f"trainer.decode_prompts={trainer.decode_prompts}, but {len(prompts)} validation rows "
            "have a prompt that leaves room to decode: lower it, or raise data.validation_rows"
        )
    return Decoding(
        target,
        prompts,
        every=trainer.decode_every,
        num_draft_tokens=trainer.decode_num_draft_tokens,
        max_new_tokens=trainer.decode_max_new_tokens,
        eos_token_ids=eos_token_ids(target_folder(cfg)),
        vocabulary_size=vocabulary_size,
    )


def make_draft(
    cfg: DictConfig, target: "PreTrainedModel", corpus: Artifact
) -> tuple["PreTrainedModel", str]:
    """The draft before training, in float32, and its plan in words."""
    if (folder := draft_folder(cfg)) is not None:
        draft = load_draft(folder, dtype=torch.float32, device="cpu")
        parameters = sum(p.numel() for p in draft.parameters())
        return draft, f"{cfg.draft.model.id}: {parameters / 1e6:.2f} M parameters"
    plan = plan_draft(target_folder(cfg), DraftConfig(**plain(cfg.draft)))
    rows = load_corpus(corpus.path)["train"]
    sample = rows.select(range(min(STATISTICS_ROWS, len(rows)))).to_list()
    sequences = [torch.tensor([row["input_ids"]]) for row in sample]
    draft = initialise_draft(
        plan,
        cfg.draft.init,
        target_folder(cfg),
        cfg.seed,
        _statistics(target, rows, sequences) if cfg.draft.init == "svd" else None,
        Calibration(target, sequences) if cfg.draft.init == "pruned" else None,
    )
    return draft, plan.table()


def _statistics(
    target: "PreTrainedModel", rows: "Dataset", sequences: list[torch.Tensor]
) -> HeadStatistics:
    """What the draft will have to predict, from training rows only: counts and hidden states."""
    counts = torch.from_numpy(token_counts(rows, target.config.get_text_config().vocab_size))
    return measure_statistics(target, sequences, counts)
