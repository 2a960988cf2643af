"""Which of the stated sizes (`plan.sizes`) a job takes on this machine: measured once, recorded.

The rates come from the stages' own code on a few rows, in less than a minute on a laptop.
"""

import gc
import logging
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from filelock import FileLock

from distill.artifacts import fingerprint
from distill.content import content, plain
from distill.data.answers import ANSWERED_SPLITS, merged
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
from distill.data.sources.self_prompted import self_prompted
from distill.errors import UserError
from distill.evaluate.benchmark.stage_times import (
    Rates,
    Watched,
    Work,
    choose_size,
    expected_minutes,
    time_training,
)
from distill.evaluate.benchmark.step_times import Setting, time_steps, verify_steps
from distill.evaluate.measure import REPETITIONS
from distill.files import read_json, write_json
from distill.models.code import auto_tokenizer
from distill.models.draft import MADE_FROM_TARGET, initialise_draft, load_draft
from distill.models.head_plan import plan_made, start_head
from distill.pipelines.job import Job
from distill.pipelines.measure import reads_answers
from distill.pipelines.road import APART
from distill.pipelines.train import STATISTICS_ROWS, reading_of
from distill.process import return_freed_memory
from distill.progress import quietly
from distill.ranks import processes
from distill.speculative.sampling import Sampling
from distill.teacher.cache import cache_signals
from distill.teacher.cached import CachedTeacher
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.live import LiveTeacher

if TYPE_CHECKING:
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
SAMPLE_ROWS = 64
"""Rows of a split whose lengths stand for all."""
READ_BATCHES = 3
"""Micro-batches whose reading is timed, and from which the short training learns."""
TIMINGS = 3
"""How often a step of decoding is timed; the median counts."""


def is_open(job: Job) -> bool:
    """Whether the job's size is still to be chosen."""
    config = job.config
    return bool(config.plan.sizes) and config.plan.size is None and config.pipeline not in APART


def choose(jobs: Mapping[str, Job]) -> str:
    """The size to take: the recorded one, or the largest that ends in `plan.minutes` here.

    jobs: by size, from the smallest on; the rates are measured for the first. The record holds for
    this class of machine, target, data and settings, however busy the machine is later.

    Raises:
        UserError: a job whose times cannot be foretold.
    """
    job = next(iter(jobs.values()))
    _check(job)
    limit, path = job.config.plan.minutes, _record(job)
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if (size := _recorded(path, jobs)) is not None:
            log.info("plan: size %s, as recorded in %s", size, path)
            return size
        log.info("plan: this machine is measured for about a minute, to choose a size")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, quietly():
            sample = _sample(job, Path(folder))
            rates = _measured(job, sample, Path(folder))
        minutes = {size: expected_minutes(_work(one, sample), rates) for size, one in jobs.items()}
        size = choose_size(minutes, limit)
        _say(minutes, size, limit)
        found = {"size": size, "expected_minutes": minutes, "rates": asdict(rates)}
        write_json(path, {**found, "machine": job.machine, "plan": plain(job.config.plan)})
        log.info("plan: recorded in %s; plan.size=NAME takes another size", path)
    return size


def _check(job: Job) -> None:
    data = job.config.data
    unknown = {
        "data.train_rows=null": data.train_rows is None,
        "data=self_prompted": bool(self_prompted(job.source)),
        "data.on_policy": bool(data.on_policy),
        "several processes": processes() > 1,
    }
    if found := [name for name, holds in unknown.items() if holds]:
        sizes = " or ".join(f"plan.size={name}" for name in job.config.plan.sizes)
        raise UserError(f"{found[0]}: the time of such a job is not foretold; give {sizes}")


def _record(job: Job) -> Path:
    """The record of this machine and of what decides the drafts and their times.

    An evaluation's settings are no part of it: another evaluation finds the drafts that are there.
    """
    config = job.config
    settings = {
        "plan": content(config.plan, "plan"),
        "machine": job.machine,
        "target": job.target.identity.sha256,
        "dtype": config.target.dtype,
        "source": job.source.fingerprint(),
        "draft": job.draft_content(),
        "data": content(config.data, "prepare") | content(config.data, "train"),
        "generate": content(config.generate, "generate"),
        "signal": plain(config.signal),
        "objective": plain(config.objective),
        "optimizer": content(job.optimizer, "train"),
        "trainer": content(config.trainer, "train"),
    }
    return job.output / "plan" / f"{fingerprint('plan', settings, [])[:12]}.json"


def _recorded(path: Path, sizes: Mapping[str, Any]) -> str | None:
    """The size of an earlier choice; None where there is none, or none that can be read."""
    try:
        size = read_json(path)["size"]
        if size in sizes:
            return size
        reason = f"it names the size {size!r}"
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    log.warning("plan: %s is damaged (%s): measured again", path, reason)
    return None


def _say(minutes: Mapping[str, Mapping[str, float]], size: str, limit: float) -> None:
    for name, stages in minutes.items():
        log.info("plan: size %s would take %.0f minutes", name, sum(stages.values()))
    if (whole := sum(minutes[size].values())) > limit:
        log.warning(
            "plan: even size %s takes %.0f minutes here, more than plan.minutes=%g: it goes on "
            "with that; stop it here if that is too long",
            size,
            whole,
            limit,
        )
    for stage, took in minutes[size].items():
        log.info("plan: %s: about %.1f minutes", stage, took)


@dataclass(frozen=True)
class _Mean:
    """Tokens of a row of a split on average.

    prompt, answer: of the rows that the target answers, at most; 0 of the others. tokens: in all.
    """

    prompt: float
    answer: float
    tokens: float
    supervised: float


@dataclass(frozen=True)
class _Sample:
    """A few rows, answered with any tokens, and what a row of each split is on average.

    prompt: of an evaluation's prompt, in tokens.
    """

    rows: DatasetDict
    means: Mapping[str, _Mean]
    prompt: float


def _sample(job: Job, folder: Path) -> _Sample:
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
        (split, row): [0]
        * min(new, job.target.context_length - len(asked[split][row]["input_ids"]))
        for split in ANSWERED_SPLITS
        for row in unanswered(asked[split]).tolist()
        if job.config.generate.enabled
    }
    rows = DatasetDict(**merged(asked, answers))
    means = {split: _mean(asked[split], rows[split], answers, split) for split in ANSWERED_SPLITS}
    prompts = asked["evaluation"]["prompt_length"]
    return _Sample(rows, means, float(np.mean(prompts)) if len(prompts) else 0.0)


def _few(data: DataConfig) -> DataConfig:
    limits = {
        name: min(getattr(data, name) or 0, SAMPLE_ROWS)
        for name in ("train_rows", "validation_rows", "evaluation_rows")
    }
    return replace(data, **limits)


def _mean(
    asked: Dataset, rows: Dataset, answers: Mapping[tuple[str, int], list[int]], split: str
) -> _Mean:
    found = [number for name, number in answers if name == split]
    count = max(len(rows), 1)
    return _Mean(
        prompt=row_lengths(asked)[found].sum() / count,
        answer=sum(len(answers[split, number]) for number in found) / count,
        tokens=row_lengths(rows).sum() / count,
        supervised=supervised_counts(rows).sum() / count,
    )


def _work(job: Job, sample: _Sample) -> Work:
    config, asked = job.config, job.config.evaluate
    train, validation = (sample.means[split] for split in ANSWERED_SPLITS)
    rows, held_out = config.data.train_rows or 0, config.data.validation_rows
    answered, trained = reads_answers(job), job.trains
    drafts = min(asked.max_candidates, config.trainer.checkpoints) if trained else 1
    arms = REPETITIONS * (1 + asked.prompt_lookup + drafts * len(asked.num_draft_tokens))
    prompts = min(asked.num_prompts, config.data.evaluation_rows) * len(asked.samplings)
    start = min(STATISTICS_ROWS, rows) * train.tokens
    return Work(
        prompts=answered * (rows * train.prompt + held_out * validation.prompt),
        answers=answered * (rows * train.answer + held_out * validation.answer),
        kept=(trained and job.signal.cached) * (rows * train.tokens + held_out * validation.tokens),
        start=trained * (job.draft.init in MADE_FROM_TARGET and not job.draft.is_head) * start,
        learnt=trained * float(config.budget.tokens or math.inf) if trained else 0.0,
        validated=trained * held_out * validation.supervised / config.trainer.validate_every,
        minutes=config.budget.minutes or math.inf,
        decoded_prompts=arms * prompts * sample.prompt,
        steps={
            batch: arms * (prompts // batch) * asked.max_new_tokens for batch in asked.batch_sizes
        },
    )


def _measured(job: Job, sample: _Sample, folder: Path) -> Rates:
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
    job: Job, target: "PreTrainedModel", sample: _Sample
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


def _part(job: Job, rows: DatasetDict) -> dict[str, Dataset]:
    """Rows of a few micro-batches to read and to learn from, and one to validate on."""
    trainer, few = job.config.trainer, {}
    needed = READ_BATCHES * max(trainer.tokens_per_batch, trainer.tokens_per_step)
    for split, tokens in (("train", needed), ("validation", 1)):
        learnt = np.flatnonzero(supervised_counts(rows[split]))
        lengths = row_lengths(rows[split])[learnt].cumsum()
        few[split] = rows[split].select(learnt[: np.searchsorted(lengths, tokens) + 1])
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
        reading=reading_of(job, target),
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
