"""The road: which stage reads which. The table below is all that knows the order.

A stage is resolved once per job, by name, before any of its settings are computed, and is handed
the results of exactly those stages that it reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers.utils.logging import disable_progress_bar

from distill.pipelines import (
    benchmark,
    cache,
    certify,
    compare,
    evaluate,
    export,
    full,
    generate,
    judge,
    measure,
    prepare,
    probe,
    register,
    train,
)
from distill.pipelines.checks import check_job
from distill.pipelines.faults import ended_by_sigterm, in_one_line
from distill.pipelines.job import Job


@dataclass(frozen=True)
class Stage:
    """run: called as `run(job, *results of what it reads)`.

    reads: names of stages; one with a question mark is read only where it is `needed`, else its
    place holds None.
    """

    run: Callable[..., Any]
    reads: tuple[str, ...] = ()
    needed: Callable[[Job], bool] = lambda _: True


STAGES = {
    "prepare": Stage(prepare.run),
    "generate": Stage(generate.run, ("prepare",), needed=measure.reads_answers),
    "cache": Stage(cache.run, ("generate",), needed=lambda job: job.signal.cached),
    "train": Stage(train.run, ("generate", "cache?"), needed=lambda job: job.trains),
    "measure": Stage(measure.run, ("prepare", "generate?", "train?")),
    "judge": Stage(judge.run, ("measure",), needed=lambda job: not job.has_ready_draft),
    "register": Stage(register.run, ("judge",)),
    "export": Stage(export.run, ("prepare", "judge")),
    "certify": Stage(certify.run, ("prepare", "judge?")),
    "benchmark decoding": Stage(benchmark.decoding, ("prepare", "judge?")),
    "benchmark training": Stage(benchmark.training, ("generate",)),
    "benchmark loss": Stage(benchmark.loss),
    "benchmark signals": Stage(benchmark.signals, ("generate",)),
    "benchmark verdict": Stage(benchmark.verdict),
}


class Road:
    """The stages of one job, each resolved at most once."""

    def __init__(self, job: Job):
        self._job = job
        self._results: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """The result of a stage; what it reads comes first."""
        if name not in self._results:
            stage = STAGES[name]
            inputs = [self._read(one) for one in stage.reads]
            self._results[name] = stage.run(self._job, *inputs)
        return self._results[name]

    def _read(self, name: str) -> Any:
        stage = name.removesuffix("?")
        if stage != name and not STAGES[stage].needed(self._job):
            return None
        return self[stage]


VERBS: dict[str, Callable[[Job, Road], Any]] = {
    "full": lambda job, road: full.run(job, road.__getitem__),
    "prepare": lambda _, road: road["prepare"],
    "generate": lambda _, road: road["generate"],
    "cache": lambda _, road: road["cache"],
    "train": lambda _, road: road["train"],
    "evaluate": lambda job, road: evaluate.run(job, road["judge"]),
    "register": lambda _, road: road["register"],
    "export": lambda _, road: road["export"],
    "certify": lambda _, road: road["certify"],
    "compare": lambda job, _: compare.run(job),
    "probe": lambda job, _: probe.run(job),
    "benchmark": lambda job, road: benchmark.run(road[f"benchmark {job.config.benchmark.what}"]),
}
"""What `pipeline=VERB` does."""
APART = ("compare", "probe")
"""Verbs off the road: they read no data and train nothing, so nothing of that is checked."""


def check(job: Job) -> None:
    """Refuse a job that cannot work, before a model loads.

    Raises:
        UserError: the first thing found, with its remedy.
    """
    if job.config.pipeline not in APART:
        with in_one_line():
            check_job(job)


def run(job: Job) -> Any:
    """Do what the command line asked for. The job is checked.

    Raises:
        UserError: what could not be known before; or the machine ended it, as by a full disk.
    """
    disable_progress_bar()  # a bar for every load says nothing; stages report their own
    do, road = VERBS[job.config.pipeline], Road(job)
    with in_one_line(), ended_by_sigterm():
        if job.config.pipeline in APART:
            return do(job, road)
        with job.opened():
            return do(job, road)
