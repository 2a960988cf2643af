"""Verb `benchmark`: how fast this code is beside others', on this configuration's own models."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from distill.artifacts import Artifact
from distill.content import content, plain
from distill.data.corpus import held_out_prompts, load_corpus
from distill.data.datamodule import CorpusDataModule
from distill.errors import UserError
from distill.evaluate.benchmark.decoding import Contest, benchmark
from distill.evaluate.benchmark.error_rates import (
    SETTINGS,
    error_rates,
    markdown,
    with_heavy_tails,
)
from distill.evaluate.benchmark.loss import LossLine, time_losses
from distill.evaluate.benchmark.signals import Fidelity, codecs_for, compare_codecs
from distill.evaluate.benchmark.training import TrainingJob, full_rows, prepare_arms, run_arms
from distill.evaluate.report.tables import (
    as_text,
    decoding_table,
    fidelity_table,
    loss_table,
    training_table,
)
from distill.files import write_json, write_text
from distill.losses.kernels import worth_compiling
from distill.models.draft import save_draft
from distill.models.folder import text_setting
from distill.models.target import pick_dtype
from distill.pipelines.job import Job
from distill.pipelines.judge import Judged
from distill.pipelines.prepare import Corpus
from distill.pipelines.probe import planned
from distill.pipelines.train import make_draft
from distill.teacher.codecs import CODECS
from distill.teacher.live import LiveTeacher
from distill.tracking.runs import Run
from distill.training.run import pick_precision
from distill.versions import hardware

log = logging.getLogger(__name__)
TABLE, RESULTS = "table.txt", "benchmark.json"


def run(measured: Artifact) -> None:
    """Print the table of a benchmark."""
    sys.stdout.write((measured.path / TABLE).read_text(encoding="utf-8"))
    sys.stdout.write(f"benchmark: {measured.path / RESULTS}\n")


def decoding(job: Job, corpus: Corpus, judged: Judged | None) -> Artifact:
    """Plain and speculative decoding here and in transformers.

    Raises:
        UserError: fewer prompts than the largest batch.
    """
    asked = job.config.benchmark
    prompts = held_out_prompts(corpus.path, max(asked.batch_sizes))
    pair = job.pair(judged and judged.draft_folder)
    sizes = ("num_draft_tokens", "batch_sizes", "max_new_tokens", "repetitions")
    settings = {
        "what": asked.what,
        "benchmark": {name: getattr(asked, name) for name in sizes},
        "dtype": job.config.target.dtype,
        "draft": pair.draft.sha256,
        "target": pair.target.sha256,
        "prompts": prompts,
        "hardware": job.machine,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        transformers_logging.set_verbosity_error()  # its hints on generation settings, each call
        target, draft = job.load_pair(pair, job.config.target.dtype)
        contest = Contest(
            target, draft, prompts, pair.vocabulary_size, asked.max_new_tokens, asked.repetitions
        )
        lines = []
        for found in benchmark(contest, asked.batch_sizes, asked.num_draft_tokens):
            log.info("benchmark: batch %d done", found[0].batch_size)
            lines += found
        rows = [line.numbers() for line in lines]
        runs = [asdict(line) for line in lines]
        _leave(folder, stage, as_text(decoding_table(lines), 190), {"lines": rows, "runs": runs})
        stage.log_table("benchmark", rows)
        efficiency = {f"b{x.batch_size}_k{x.num_draft_tokens}": x.efficiency for x in lines}
        return {"engine_efficiency": efficiency}

    return job.make("benchmark", settings, [], produce)


def training(job: Job, corpus: Corpus) -> Artifact:
    """Tokens per second and peak memory on a CPU: ours, live and from caches, and TRL's.

    Raises:
        UserError: settings that cannot be measured, or an arm that fails.
    """
    asked, trainer = job.config.benchmark, job.config.trainer
    half = pick_precision(trainer) == "bf16-mixed"
    measured = ("warmup", "steps", "repetitions", "trl_python", "cached")
    settings = {
        "what": asked.what,
        **{name: getattr(asked, name) for name in measured},
        **{name: getattr(trainer, name) for name in ("tokens_per_batch", "tokens_per_step")},
        "length": job.config.data.max_length,
        "draft": content(job.draft, "train"),
        "target": job.target.identity.sha256,
        "half": half,
        "threads": torch.get_num_threads(),
        "seed": job.config.seed,
        "hardware": hardware(),
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        found = _train_arms(job, corpus, half, folder / "work")
        _leave(folder, stage, as_text(training_table(found), 110), {**found, **settings})
        return {"tokens_per_second": {n: median(arm["rates"]) for n, arm in found["arms"].items()}}

    return job.make("benchmark", settings, [corpus.artifact], produce)


def loss(job: Job) -> Artifact:
    """The fused loss of one micro-batch on a CPU beside its matrix products alone.

    It is timed in `target.dtype`; if that is `auto`, in fp32 too. Heads and states are random; no
    model is loaded.
    """
    asked, objective = job.config.benchmark, job.objective
    heads = [plain(one) for one in asked.heads] or [_own_heads(job)]
    settings = {
        "what": asked.what,
        "heads": heads,
        "repetitions": asked.repetitions,
        "dtype": job.config.target.dtype,
        "tokens": job.config.trainer.tokens_per_batch,
        "chunk_size": objective.chunk_size,
        "compiled": objective.compiled,
        "threads": torch.get_num_threads(),
        "hardware": job.machine,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        lines = [line for one in heads for line in _time_losses(job, one)]
        found = [line.numbers() for line in lines]
        _leave(folder, stage, as_text(loss_table(lines), 130), {"lines": found, **settings})
        return {}

    return job.make("benchmark", settings, [], produce)


def signals(job: Job, corpus: Corpus) -> Artifact:
    """Bytes per token, angle, norm ratio and noise of each cached signal, on training batches.

    The draft is the configured one as it starts; `draft=ready draft.model.id=FOLDER` looks at a
    trained one. A codec that the objective cannot learn from is left out, with the reason.
    """
    asked = job.config.benchmark.signals
    settings = {
        "what": job.config.benchmark.what,
        "signals": plain(asked),
        "objective": plain(job.config.objective),
        "draft": job.draft_content(),
        "tokens_per_batch": job.config.trainer.tokens_per_batch,
        "target": job.target.identity.sha256,
        "dtype": job.config.target.dtype,
        "seed": job.config.seed,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        found = _compare_signals(job, corpus)
        rows = [asdict(one) for one in found]
        _leave(folder, stage, as_text(fidelity_table(found)), {"lines": rows, **settings})
        return {one.codec: {"angle": one.angle, "noise": one.noise} for one in found}

    return job.make("benchmark", settings, [corpus.artifact], produce)


def verdict(job: Job) -> Artifact:
    """How often the verdict is wrong, by simulation; no model is needed."""
    asked = job.config.benchmark
    settings = {"what": asked.what, "trials": asked.trials, "seed": job.config.seed}

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        every = (*SETTINGS, *with_heavy_tails())
        lines = []
        for line in error_rates(every, trials=asked.trials, seed=job.config.seed):
            log.info("benchmark: %s, %s done", line.setting.name, line.method)
            lines.append(line)
        rows = [asdict(line) for line in lines]
        _leave(folder, stage, markdown(lines), {"lines": rows, **settings})
        return {}

    return job.make("benchmark", settings, [], produce)


def check_benchmark(job: Job) -> None:
    """Refuse a benchmark that cannot be measured.

    Raises:
        UserError: an interpreter that is not there, or an objective that suits no codec.
    """
    asked = job.config.benchmark
    python = asked.trl_python
    if asked.what == "training" and python is not None and not Path(python).expanduser().is_file():
        raise UserError(
            f"benchmark.trl_python={python} does not exist: name the interpreter of an environment "
            "with TRL, or leave it null"
        )
    if unknown := sorted({*asked.cached} - {*CODECS}):
        raise UserError(f"benchmark.cached: {unknown[0]!r} is none of {', '.join(CODECS)}")
    if asked.what == "signals":
        codecs_for(job.objective, asked.signals.k, asked.signals.draws)


def _leave(folder: Path, stage: Run, table: str, results: Mapping[str, Any]) -> None:
    write_text(folder / TABLE, table)
    write_json(folder / RESULTS, results)
    stage.log_folder(folder, "benchmark")


def _train_arms(job: Job, corpus: Corpus, half: bool, place: Path) -> dict[str, Any]:
    """What the table and the file tell. The models leave this process before any arm starts."""
    trainer, asked, size = job.config.trainer, job.config.benchmark, job.vocabulary_size
    length = job.config.data.max_length
    per_batch = max(trainer.tokens_per_batch // length, 1)
    work = TrainingJob(
        target=str(job.target.folder),
        draft=str(place / "draft"),
        rows=str(place / "rows.json"),
        rows_per_batch=per_batch,
        batches_per_step=max(trainer.tokens_per_step // (per_batch * length), 1),
        warmup=asked.warmup,
        steps=asked.steps,
        half=half,
        vocabulary_size=size,
    )
    arms = _prepared(job, corpus, work, place)
    return run_arms(arms, work, place, asked.repetitions)


def _prepared(job: Job, corpus: Corpus, work: TrainingJob, place: Path) -> dict[str, list[str]]:
    """The commands of the arms. Target and draft are in memory no longer than this call."""
    rows = full_rows(load_corpus(corpus.path)["train"], job.config.data.max_length)
    target = job.target.load()
    draft, _ = make_draft(job, target, corpus)
    return prepare_arms(
        work,
        rows,
        LiveTeacher(target, work.vocabulary_size),
        lambda folder: save_draft(draft, folder, job.target.folder),
        place,
        cached=job.config.benchmark.cached,
        trl_python=job.config.benchmark.trl_python,
    )


def _time_losses(job: Job, heads: Mapping[str, int]) -> list[LossLine]:
    """The lines of one pair of heads, in every dtype that is asked for."""
    cpu, given = torch.device("cpu"), job.config.target.dtype
    names = {"float32", given} if given == "auto" else {given}
    compiled = job.objective.compiled
    if compiled is None:
        compiled = worth_compiling(cpu, heads["vocabulary_size"])
    return time_losses(
        **heads,
        tokens=job.config.trainer.tokens_per_batch,
        chunk_size=job.objective.chunk_size,
        dtypes={pick_dtype(name, cpu) for name in names},
        compiled=compiled,
        repetitions=job.config.benchmark.repetitions,
    )


def _own_heads(job: Job) -> dict[str, int]:
    """Of this configuration's pair, from configs and tokenizers alone."""
    target, draft = job.target.folder, job.draft_folder
    return {
        "vocabulary_size": job.vocabulary_size,
        "width": planned(job, target, draft).config.hidden_size,
        "target_width": text_setting(target, "hidden_size"),
    }


def _compare_signals(job: Job, corpus: Corpus) -> list[Fidelity]:
    asked, limit = job.config.benchmark.signals, job.config.trainer.tokens_per_batch
    codecs = codecs_for(
        job.objective, asked.k, asked.draws, note=lambda why: log.warning("signals: %s", why)
    )
    target = job.target.load()
    draft, _ = make_draft(job, target, corpus)
    module = CorpusDataModule(
        corpus.path, tokens_per_batch=limit, tokens_per_step=limit, seed=job.config.seed
    )
    module.setup()
    windows = islice(module.train_dataloader(), asked.batches)
    place = target.device
    draft.to(place)  # pyright: ignore[reportArgumentType]
    batches = [{k: v.to(place) for k, v in b.items()} for window in windows for b in window]
    return compare_codecs(
        draft,
        LiveTeacher(target, job.vocabulary_size),
        batches,
        codecs,
        job.objective,
        job.vocabulary_size,
        repetitions=asked.encodings,
        seed=job.config.seed,
        progress=lambda done: log.info("signals: %s", done),
    )
