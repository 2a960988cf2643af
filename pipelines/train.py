"""Stage `train`: a draft learns the target's distribution; candidates are written along the way."""

import gc
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from distill.artifacts import Artifact
from distill.content import content, plain
from distill.data.corpus import load_corpus, token_counts
from distill.data.datamodule import CorpusDataModule
from distill.errors import UserError
from distill.models.config import MASK_KEY
from distill.models.draft import MADE_FROM_TARGET, initialise_draft, load_draft
from distill.models.folder import text_setting
from distill.models.head_plan import plan_head, start_head
from distill.models.importance import Calibration
from distill.models.parallel import choose_mask
from distill.models.plan import plan_draft
from distill.models.svd import HeadStatistics, measure_statistics
from distill.pipelines.cache import CachedSignal
from distill.pipelines.job import Job
from distill.pipelines.prepare import Corpus
from distill.teacher import Teacher
from distill.teacher.cached import CachedTeacher
from distill.teacher.head import check_packing
from distill.teacher.live import LiveTeacher
from distill.tracking.lightning import lightning_logger
from distill.tracking.runs import Run
from distill.training.callbacks.candidates import CANDIDATES, candidate_folders
from distill.training.callbacks.decoding import Decoding
from distill.training.callbacks.resume import RESUME
from distill.training.masked import Mask
from distill.training.on_policy import OnPolicy
from distill.training.run import train_draft
from distill.training.student import Reading

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
STATISTICS_ROWS = 64
"""Training rows that the target is run on for the draft's start: ten thousand tokens or more."""


@dataclass(frozen=True)
class Training:
    """A finished training: its artifact, and what it took."""

    artifact: Artifact
    train_tokens: int
    tokens_per_second: float

    @property
    def candidates(self) -> list[Path]:
        """Folders of the drafts that it wrote, oldest first."""
        return candidate_folders(self.artifact.path / CANDIDATES)


def run(job: Job, corpus: Corpus, signal: CachedSignal | None) -> Training:
    """Folders `candidates/tokens-*`, each a draft that decodes.

    Raises:
        UserError: settings that cannot work, before a model is loaded.
    """
    config = job.config
    settings = {
        "draft": job.draft_content(),
        "optimizer": content(job.optimizer, "train"),
        "schedule": content(config.schedule, "train"),
        "budget": content(config.budget, "train"),
        "objective": plain(config.objective),
        "signal": config.signal["_target_"],  # its inputs say the same, but not to who reads a name
        "trainer": content(config.trainer, "train"),
        "data": {
            name: value
            for name, value in content(config.data, "train").items()
            if name not in content(config.data, "prepare")
        },
        "target": job.target.identity.sha256,
        "dtype": config.target.dtype,
        "seed": config.seed,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        counts = _train(job, corpus, signal, folder, stage)
        # Trainer and module refer to each other: the target would stay beside the evaluation's own.
        gc.collect()
        # Names: the folder is renamed when it is whole.
        return counts | {"candidates": [Path(path).name for path in counts["candidates"]]}

    inputs = [corpus.artifact] if signal is None else [corpus.artifact, signal.artifact]
    # Checkpoints go when it is whole, not before: a kill on the last step still goes on from them.
    artifact = job.make("train", settings, inputs, produce, collective=True, scratch=[RESUME])
    counts = artifact.counts
    return Training(artifact, counts["train_tokens"], counts["tokens_per_second"])


def make_draft(
    job: Job, target: "PreTrainedModel | None", corpus: Corpus
) -> tuple["PreTrainedModel", str]:
    """The draft before training, in float32, and its plan in words.

    target: asked only for a draft that is made from it (`MADE_FROM_TARGET`).
    """
    if job.draft_folder is not None:
        draft = load_draft(job.draft_folder, dtype=torch.float32, device="cpu")
        parameters = sum(p.numel() for p in draft.parameters())
        return draft, f"{job.draft_folder.name}: {parameters / 1e6:.2f} M parameters"
    rows = load_corpus(corpus.path)["train"]
    if job.draft.is_head:
        assert target is not None
        counts = torch.from_numpy(token_counts(rows, target.config.get_text_config().vocab_size))
        seed, size = job.config.seed, job.draft.vocabulary
        head = start_head(target, job.target.folder, counts, size, seed)
        plan = plan_head(job.target.folder, replace(job.draft, vocabulary=len(head.kept)))
        covered = counts[head.kept].sum() / counts.sum()
        return (
            head,
            f"{plan.table()}\n{'ids of its own':<24}{len(head.kept)} ({covered:.1%} of the text)",
        )
    plan = plan_draft(job.target.folder, job.draft)
    sample = rows.select(range(min(STATISTICS_ROWS, len(rows)))).to_list()
    sequences = [torch.tensor([row["input_ids"]]) for row in sample]
    statistics, calibration = None, None
    if job.draft.init in MADE_FROM_TARGET:
        assert target is not None
        if job.draft.init == "svd":
            statistics = _statistics(target, rows, sequences)
        else:
            calibration = Calibration(target, sequences)
    draft = initialise_draft(
        plan, job.draft.init, job.target.folder, job.config.seed, statistics, calibration
    )
    return draft, plan.table()


def _train(
    job: Job, corpus: Corpus, signal: CachedSignal | None, folder: Path, stage: Run
) -> dict[str, Any]:
    config, vocabulary = job.config, job.vocabulary_size
    mask = mask_of(job, corpus.path)
    decodes = bool(config.trainer.decode_every)
    needed = signal is None or decodes or job.draft.init in MADE_FROM_TARGET or bool(job.reads)
    target = job.target.load() if needed else None
    draft, description = make_draft(job, target, corpus)
    log.info("draft (%s):\n%s", job.draft.init, description)
    if mask is not None:
        setattr(draft.config, MASK_KEY, mask.token)
        log.info("parallel: %d tokens a pass, mask token %d", mask.steps, mask.token)
    teacher = _teacher(job, draft, target, signal)
    kind = mask or reading_of(job, target)
    decoding = _decoding(job, corpus, target) if decodes and target is not None else None
    on_policy = _on_policy(job, target)
    del target  # a cached signal needs no more of it
    datamodule = CorpusDataModule(
        corpus.path,
        tokens_per_batch=config.trainer.tokens_per_batch,
        tokens_per_step=config.trainer.tokens_per_step,
        packing=config.data.packing,
        seed=config.seed,
    )
    return train_draft(
        draft,
        teacher,
        datamodule,
        job.objective,
        job.optimizer,
        config.schedule,
        config.trainer,
        config.budget,
        folder,
        vocabulary_size=vocabulary,
        target_folder=job.target.folder,
        kind=kind,
        on_policy=on_policy,
        logger=lightning_logger(stage),
        decoding=decoding,
        about={
            "template_sha256": job.target.identity.template_sha256,
            "template_flags": job.target.identity.template_flags,
        },
        seed=config.seed,
    )


def _teacher(
    job: Job,
    draft: "PreTrainedModel",
    target: "PreTrainedModel | None",
    signal: CachedSignal | None,
) -> Teacher:
    """The cache or the target itself, once it is known that its models can take the batches."""
    if job.config.data.packing and not job.reads:
        check_packing(draft)
    if signal is not None:
        return CachedTeacher(signal.path, job.codec)
    assert target is not None
    if job.config.data.packing:
        check_packing(target)
    compiled = job.config.trainer.compile_target
    return LiveTeacher(target, job.vocabulary_size, compiled=compiled, reads=job.reads)


def reading_of(job: Job, target: "PreTrainedModel | None") -> Reading | None:
    """What a head is trained with; None for a draft that reads no states."""
    if not job.reads:
        return None
    assert target is not None
    embedding: Any = target.get_input_embeddings()
    return Reading(embedding.weight.detach().float().clone(), job.draft.unroll)


def mask_of(job: Job, corpus: Path) -> Mask | None:
    """How a parallel draft is trained; None for a draft of one token a pass.

    Raises:
        UserError: the mask token occurs in the training rows.
    """
    asked = job.draft
    if asked.parallel is None:
        return None
    folder = job.draft_folder or job.target.folder
    rows = load_corpus(corpus)["train"]
    counts = token_counts(rows, text_setting(job.target.folder, "vocab_size")).tolist()
    token = choose_mask(folder, job.mask_asked, counts)
    return Mask(token, asked.parallel, asked.retention, asked.least_retention)


def _decoding(job: Job, corpus: Corpus, target: "PreTrainedModel") -> Decoding:
    """The callback of `trainer.decode_every`, for the first validation prompts.

    Raw text has no prompt of its own: its first tokens are one, as in the evaluation.
    """
    trainer = job.config.trainer
    longest = job.target.context_length - trainer.decode_max_new_tokens
    rows = load_corpus(corpus.path)["validation"].to_list()
    begins = [row["prompt_length"] or job.config.data.prompt_tokens for row in rows]
    prompts = [row["input_ids"][:begin] for row, begin in zip(rows, begins, strict=True)]
    prompts = [tokens for tokens in prompts if len(tokens) <= longest][: trainer.decode_num_prompts]
    if len(prompts) < trainer.decode_num_prompts:
        raise UserError(
            f"trainer.decode_num_prompts={trainer.decode_num_prompts}, but {len(prompts)} "
            "validation rows have a prompt that leaves room to decode: lower it, or raise "
            "data.validation_rows"
        )
    return Decoding(
        target,
        prompts,
        every=trainer.decode_every,
        num_draft_tokens=trainer.decode_num_draft_tokens,
        max_new_tokens=trainer.decode_max_new_tokens,
        eos_token_ids=job.target.eos_token_ids,
        vocabulary_size=job.vocabulary_size,
    )


def _on_policy(job: Job, target: "PreTrainedModel | None") -> OnPolicy | None:
    """Who answers the rows of `data.on_policy`; None where there are none."""
    data = job.config.data
    if not data.on_policy:
        return None
    return OnPolicy(
        share=data.on_policy,
        prompt_tokens=data.prompt_tokens,
        eos_token_ids=job.target.eos_token_ids,
        vocabulary_size=job.vocabulary_size,
        seed=job.config.seed,
        target=target if data.on_policy_by == "pair" else None,
    )


def _statistics(
    target: "PreTrainedModel", rows: "Dataset", sequences: list[torch.Tensor]
) -> HeadStatistics:
    """What the draft will have to predict, from training rows only: counts and hidden states."""
    counts = torch.from_numpy(token_counts(rows, target.config.get_text_config().vocab_size))
    return measure_statistics(target, sequences, counts)
