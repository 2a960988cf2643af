"""What this machine does in a second on a job's own target, rows and draft, measured on a few rows.

The stages' own code runs, in less than a minute on a quiet laptop.
"""

import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers.utils.logging import disable_progress_bar

from distill.data.answers import ANSWERED_SPLITS
from distill.data.config import DataConfig
from distill.data.corpus import (
    build_corpus,
    load_corpus,
    row_lengths,
    save_corpus,
    supervised_counts,
    token_counts,
    unanswered,
)
from distill.data.encode import Example
from distill.evaluate.benchmark.stage_times import Rates, Watched, time_training
from distill.evaluate.benchmark.step_times import Setting, time_steps, verify_steps
from distill.models.code import auto_tokenizer
from distill.models.draft import initialise_draft, load_draft
from distill.models.head_plan import plan_made, start_head
from distill.pipelines.job import Job
from distill.pipelines.train import mask_of, reading_of
from distill.process import return_freed_memory
from distill.speculative.sampling import Sampling
from distill.teacher.cache import cache_signals
from distill.teacher.cached import CachedTeacher
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.live import LiveTeacher

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAMPLE_ROWS = 64
"""Rows of a split whose lengths stand for all."""
READ_BATCHES = 3
"""Micro-batches whose reading is timed, and from which the short training learns."""
TIMINGS = 3
"""How often a step of decoding is timed; the median counts."""


@dataclass(frozen=True)
class Mean:
    """Tokens of a row of a split on average.

    prompt, answer: of the rows that the target answers, at most; 0 of the others. tokens: in all.
    """

    prompt: float
    answer: float
    tokens: float
    supervised: float


@dataclass(frozen=True)
class Sample:
    """A few rows, answered with any tokens, and what a row of each split is on average.

    prompt: of an evaluation's prompt, in tokens.
    """

    rows: DatasetDict
    means: Mapping[str, Mean]
    prompt: float


def take_sample(job: Job, folder: Path) -> Sample:
    """What `prepare` would make of the first rows. Times do not depend on what is answered."""
    data, place = job.config.data, folder / "sample"
    place.mkdir()
    build_corpus(
        job.source,
        auto_tokenizer(job.target.folder),
        _few(data),
        job.config.target,
        place,
        eos_token_ids=job.target.eos_token_ids,
        seed=job.config.seed,
    )
    asked, new = load_corpus(place), job.config.generate.max_new_tokens
    answers = {
        split: {
            row: min(new, job.target.context_length - len(asked[split][row]["input_ids"]))
            for row in unanswered(asked[split]).tolist()
            if job.config.generate.enabled
        }
        for split in ANSWERED_SPLITS
    }
    answered = folder / "answered"
    answered.mkdir()
    found = {split: _with(asked[split], answers[split]) for split in ANSWERED_SPLITS}
    save_corpus(found, answered)
    rows = load_corpus(answered)
    means = {split: _mean(asked[split], rows[split], answers[split]) for split in ANSWERED_SPLITS}
    prompts = asked["evaluation"]["prompt_length"]
    return Sample(rows, means, float(np.mean(prompts)) if len(prompts) else 0.0)


def _with(rows: Dataset, answers: Mapping[int, int]) -> Iterator[Example]:
    """The rows, those that `answers` numbers with so many tokens more."""
    for number, row in enumerate(rows.to_list()):
        tokens = [*row["input_ids"], *[0] * answers.get(number, 0)]
        yield Example(row["id"], row["domain"], np.array(tokens), row["prompt_length"])


def _few(data: DataConfig) -> DataConfig:
    limits = {
        name: min(getattr(data, name) or 0, SAMPLE_ROWS)
        for name in ("train_rows", "validation_rows", "evaluation_rows")
    }
    return replace(data, **limits)


def _mean(asked: Dataset, rows: Dataset, answers: Mapping[int, int]) -> Mean:
    count = max(len(rows), 1)
    return Mean(
        prompt=row_lengths(asked)[list(answers)].sum() / count,
        answer=sum(answers.values()) / count,
        tokens=row_lengths(rows).sum() / count,
        supervised=supervised_counts(rows).sum() / count,
    )


def measure_rates(job: Job, sample: Sample, folder: Path) -> Rates:
    """The rates of the job's stages; what is written on the way lies in `folder`."""
    disable_progress_bar()
    with torch.random.fork_rng():
        target = job.target.load()
        answered, steps = _decoding(job, target, sample)
        # What compiles the target's blocks comes behind the decoding, which runs them as they are.
        teacher = LiveTeacher(
            target, job.vocabulary_size, compiled=job.config.trainer.compile_target, reads=job.reads
        )
        corpus = folder / "rows"
        corpus.mkdir()
        save_corpus(_part(job, sample.rows), corpus)
        read, cache = _reading(job, teacher, corpus, folder)
        learnt = _learning(job, target, teacher, corpus, cache, folder) if job.trains else 1.0
        del target, teacher
    gc.collect()
    return_freed_memory()
    return Rates(answered, read, learnt, steps)


def _decoding(
    job: Job, target: "PreTrainedModel", sample: Sample
) -> tuple[float, dict[int, float]]:
    """Answered tokens a second, and the seconds of an evaluation's steps by batch size."""
    generate, asked, vocabulary = job.config.generate, job.config.evaluate, job.vocabulary_size
    train = sample.means["train"]
    batch = min(generate.batch_size, max(1, len(sample.rows["train"])))
    share = train.answer / generate.max_new_tokens
    context = round(train.prompt / share if share else sample.prompt) + generate.max_new_tokens // 2
    settings = {
        "answer": Setting(
            batch, context, vocabulary, Sampling(generate.temperature, top_p=generate.top_p)
        )
    }
    for size in asked.batch_sizes:
        length = round(sample.prompt) + asked.max_new_tokens // 2
        settings[str(size)] = Setting(size, length, vocabulary, asked.samplings[0])
    steps = {name: verify_steps(target, [1], one)[1] for name, one in settings.items()}
    seconds = time_steps(steps, TIMINGS, target.device)
    return batch / seconds["answer"], {size: seconds[str(size)] for size in asked.batch_sizes}


def _part(job: Job, rows: DatasetDict) -> dict[str, Iterator[Example]]:
    """Rows of a few micro-batches to read and to learn from, and one to validate on."""
    trainer, few = job.config.trainer, {}
    needed = READ_BATCHES * max(trainer.tokens_per_batch, trainer.tokens_per_step)
    for split, tokens in (("train", needed), ("validation", 1)):
        learnt = np.flatnonzero(supervised_counts(rows[split]))
        lengths = row_lengths(rows[split])[learnt].cumsum()
        chosen = rows[split].select(learnt[: np.searchsorted(lengths, tokens) + 1])
        few[split] = _with(chosen, {})
    return few


def _reading(job: Job, teacher: LiveTeacher, corpus: Path, folder: Path) -> tuple[float, Path]:
    """Tokens that the target reads in a second, and where the signal of the rows is kept."""
    codec: Codec = job.codec if job.signal.cached else Hidden()
    rows = load_corpus(corpus)

    def keep(name: str, rows: DatasetDict) -> tuple[float, Path]:
        place = folder / name
        place.mkdir()
        found = cache_signals(
            teacher,
            rows,
            codec,
            place,
            shard_tokens=2**15,
            tokens_per_batch=job.config.trainer.tokens_per_batch,
        )
        return found["tokens_per_second"], place

    keep("warm", DatasetDict({name: split.select([0]) for name, split in rows.items()}))
    supervised, place = keep("cache", rows)
    splits = list(rows.values())
    tokens = sum(int(row_lengths(split).sum()) for split in splits)
    learnt = sum(int(supervised_counts(split).sum()) for split in splits)
    return supervised * tokens / learnt, place


def _learning(
    job: Job,
    target: "PreTrainedModel",
    teacher: LiveTeacher,
    corpus: Path,
    cache: Path,
    folder: Path,
) -> float:
    """Supervised tokens a second of the draft that is planned; its weights are drawn at random."""
    config = job.config
    trainer = config.trainer
    data = Watched(
        corpus,
        tokens_per_batch=trainer.tokens_per_batch,
        tokens_per_step=trainer.tokens_per_step,
        packing=config.data.packing,
        seed=config.seed,
    )
    return time_training(
        data,
        trainer,
        folder / "training",
        draft=_draft(job, target, corpus),
        teacher=CachedTeacher(cache, job.codec) if job.signal.cached else teacher,
        objective=job.objective,
        optimizer=job.optimizer,
        schedule=config.schedule,
        vocabulary_size=job.vocabulary_size,
        target_folder=job.target.folder,
        kind=mask_of(job, corpus) or reading_of(job, target),
        seed=config.seed,
    )


def _draft(job: Job, target: "PreTrainedModel", corpus: Path) -> "PreTrainedModel":
    if job.draft_folder is not None:
        return load_draft(job.draft_folder, dtype=torch.float32, device="cpu")
    seed, folder = job.config.seed, job.target.folder
    if job.draft.is_head:
        size = target.config.get_text_config().vocab_size
        counts = torch.from_numpy(token_counts(load_corpus(corpus)["train"], size))
        return start_head(target, folder, counts, job.draft.vocabulary, seed)
    return initialise_draft(plan_made(folder, job.draft), "scratch", folder, seed)
