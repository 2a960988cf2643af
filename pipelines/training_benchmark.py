"""`pipeline=benchmark what=training`: this trainer beside TRL's, on this configuration's models."""

import json
import shutil
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.data.corpus import FEATURES, load_corpus
from distill.errors import UserError
from distill.evaluate.tables import as_text, training_table
from distill.evaluate.training_speed import TrainingJob, here, race, same_update, trl
from distill.models.draft import save_draft
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate
from distill.pipelines.inputs import (
    draft_folder,
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import run_stage
from distill.pipelines.train import make_draft
from distill.teacher.cache import cache_signals
from distill.teacher.codecs import CODECS
from distill.teacher.live import LiveTeacher
from distill.tracking.runs import Run
from distill.training.run import pick_precision
from distill.versions import hardware

TABLE, RESULTS = "table.txt", "benchmark.json"
MEASURED = ("warmup", "steps", "repetitions", "trl_python", "signals")


def training(cfg: DictConfig) -> Artifact:
    """Tokens per second and peak memory on CPU: ours, live and from caches, and TRL's.

    Raises:
        UserError: settings that cannot be measured, or an arm that fails.
    """
    _check(cfg)
    corpus = generate.run(cfg)
    asked = cfg.benchmark
    half = pick_precision(cfg.trainer) == "bf16-mixed"
    settings = {
        "what": "training",
        **{name: asked[name] for name in MEASURED},
        **{name: cfg.trainer[name] for name in ("tokens_per_batch", "tokens_per_step")},
        "length": cfg.data.max_length,
        "draft": plain(cfg.draft),
        "target": target_identity(cfg).sha256,
        "half": half,
        "threads": torch.get_num_threads(),
        "seed": cfg.seed,
        "hardware": hardware(),
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        place = folder / "work"  # of a run that failed it stays, with what the arms said
        shutil.rmtree(place, ignore_errors=True)
        found = _measure(cfg, corpus, half, place)
        shutil.rmtree(place)
        (folder / TABLE).write_text(as_text(training_table(found), 110), encoding="utf-8")
        write_json(folder / RESULTS, {**found, **settings})
        stage.log_folder(folder, "benchmark")
        return {"tokens_per_second": {n: median(arm["rates"]) for n, arm in found["arms"].items()}}

    return run_stage(cfg, "benchmark", settings, [corpus], produce)


def _check(cfg: DictConfig) -> None:
    for name in ("warmup", "steps", "repetitions"):
        if cfg.benchmark[name] < 1:
            raise UserError(f"benchmark.{name}={cfg.benchmark[name]}: give values from 1 up")
    if unknown := sorted({*cfg.benchmark.signals} - {*CODECS}):
        raise UserError(f"benchmark.signals: {unknown[0]!r} is none of {', '.join(CODECS)}")
    python = cfg.benchmark.trl_python
    if python is not None and not Path(python).expanduser().is_file():
        raise UserError(
            f"benchmark.trl_python={python} does not exist: name the interpreter of an environment "
            "with TRL, or leave it null"
        )


def _measure(cfg: DictConfig, corpus: Artifact, half: bool, place: Path) -> dict[str, Any]:
    """What the table and the file tell. The models leave this process before any arm starts."""
    size = shared_vocabulary(target_folder(cfg), draft_folder(cfg)).size
    target = load_configured_target(cfg)
    draft, _ = make_draft(cfg, target, corpus)
    place.mkdir()
    save_draft(draft, place / "draft", target_folder(cfg))
    job = _job(cfg, corpus, place, half, size)
    arms = {"live": here()}
    for name in cfg.benchmark.signals:
        arms[name] = here(name, _cached(LiveTeacher(target, size), job, name, place))
    del target, draft
    if cfg.benchmark.trl_python is not None:
        arms["trl"] = trl(str(Path(cfg.benchmark.trl_python).expanduser()))
    runs = race(arms, job, place / "runs", cfg.benchmark.repetitions)
    return {
        "arms": {
            name: {
                "rates": [run.tokens_per_second for run in found],
                "peak_bytes": [run.peak_bytes for run in found],
                "versions": found[0].versions,
            }
            for name, found in runs.items()
        },
        "same_update": (
            same_update(job, place / "runs" / "live-0", place / "runs" / "trl-0")
            if "trl" in arms
            else None
        ),
    }


def _job(
    cfg: DictConfig, corpus: Artifact, place: Path, half: bool, vocabulary_size: int
) -> TrainingJob:
    """Full-length training rows, so that every batch is the same work for every arm."""
    length = cfg.data.max_length
    rows = [list(ids) for ids in load_corpus(corpus.path)["train"]["input_ids"]]
    full = [ids for ids in rows if len(ids) == length]
    if not full:
        raise UserError(
            f"no training row has data.max_length={length} tokens: lower it, or use data=code"
        )
    per_batch = max(cfg.trainer.tokens_per_batch // length, 1)
    job = TrainingJob(
        target=str(target_folder(cfg)),
        draft=str(place / "draft"),
        rows=str(place / "rows.json"),
        rows_per_batch=per_batch,
        batches_per_step=max(cfg.trainer.tokens_per_step // (per_batch * length), 1),
        warmup=cfg.benchmark.warmup,
        steps=cfg.benchmark.steps,
        half=half,
        vocabulary_size=vocabulary_size,
    )
    # No more than is trained on: as lists of Python numbers a corpus takes more than a draft.
    (place / "rows.json").write_text(json.dumps(full[: job.all_rows]))
    return job


def _cached(teacher: LiveTeacher, job: TrainingJob, name: str, place: Path) -> Path:
    """The target's signal for the job's rows, as `pipeline=cache` would leave it."""
    folder = place / f"cache-{name}"
    folder.mkdir()
    rows = json.loads(Path(job.rows).read_text())
    columns = {
        "id": [str(n) for n in range(len(rows))],
        "domain": [""] * len(rows),
        "input_ids": rows,
        "prompt_length": [0] * len(rows),
    }
    split = datasets.Dataset.from_dict(columns, features=FEATURES)
    cache_signals(
        teacher,
        datasets.DatasetDict({"train": split, "validation": split.select([0])}),
        CODECS[name](),
        folder,
        shard_tokens=len(rows) * len(rows[0]),
        tokens_per_batch=job.rows_per_batch * len(rows[0]),
    )
    return folder
