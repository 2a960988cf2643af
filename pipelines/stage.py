"""How a stage runs inside a job: one nested MLflow run, one artifact, made at most once per job."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig
from transformers.utils.logging import disable_progress_bar

from distill.artifacts import Artifact, build, fingerprint
from distill.pipelines.inputs import output_root, plain
from distill.process import return_freed_memory
from distill.schema import TrackingConfig
from distill.tracking.runs import FINGERPRINT, Job, Run, numbers, start_job

T = TypeVar("T")
Produce = Callable[[Path, Run], dict[str, Any]]


@dataclass
class _Open:
    job: Job
    finished: dict[str, Artifact] = field(default_factory=dict)


_open: ContextVar[_Open] = ContextVar("open job")


@contextmanager
def open_job(cfg: DictConfig) -> Iterator[Job]:
    """The job that all stages inside the block belong to: one parent run in MLflow."""
    tracking = TrackingConfig(**plain(cfg.tracking))
    with start_job(plain(cfg), tracking, output_root(cfg), cfg.name) as job:
        token = _open.set(_Open(job))
        try:
            yield job
        finally:
            _open.reset(token)


def as_job(stage: Callable[[DictConfig], T]) -> Callable[[DictConfig], T]:
    """Asked for by itself, a stage checks everything and opens the job; else it joins the open."""

    @wraps(stage)
    def run(cfg: DictConfig) -> T:
        if _open.get(None) is not None:
            return stage(cfg)
        from distill.pipelines.checks import check_everything  # which knows the stages

        check_everything(cfg)
        disable_progress_bar()  # a bar for every load says nothing; stages report their own
        with open_job(cfg):
            return stage(cfg)

    return run


def current_job() -> Job:
    return _open.get().job


def run_stage(
    cfg: DictConfig,
    stage: str,
    settings: Mapping[str, Any],
    inputs: Sequence[Artifact],
    produce: Produce,
    *,
    collective: bool = False,
    part_of: str | None = None,
) -> Artifact:
    """The stage's artifact; stages ask for their inputs, so several may ask for the same one.

    `produce` gets the folder to fill and the stage's MLflow run; it returns the manifest's counts.
    part_of: the stage of the command line that this one belongs to, where that is another.
    """
    opened = _open.get()
    digest = fingerprint(stage, settings, inputs)
    if digest in opened.finished:
        return opened.finished[digest]
    with opened.job.stage(stage) as run:
        run.log_tags({FINGERPRINT: digest})
        artifact = build(
            stage,
            output_root(cfg),
            settings,
            inputs,
            lambda folder: produce(folder, run),
            force=_forced(cfg, part_of or stage),
            collective=collective,
        )
        if artifact.fresh:
            run.log_metrics(dict(numbers(artifact.counts)))
        else:
            run.log_up_to_date(artifact.counts)
    if artifact.fresh:
        return_freed_memory()
    opened.finished[digest] = artifact
    return artifact


def asked_stage(cfg: DictConfig) -> str:
    """The stage on the command line; it may need others first. `full`: the whole job."""
    return cfg.pipeline["_target_"].split(".")[-2]


def _forced(cfg: DictConfig, stage: str) -> bool:
    """`force=true` redoes the stage that was asked for, or all when the whole job was."""
    return cfg.force and asked_stage(cfg) in (stage, "full")
