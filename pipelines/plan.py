"""Which of the stated sizes (`plan.sizes`) a job takes on this machine: measured once, recorded.

What is recorded is taken again by every later run, however busy the machine is then.
"""

import logging
import math
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from distill.artifacts import fingerprint
from distill.content import content, plain
from distill.data.answers import ANSWERED_SPLITS
from distill.data.sources.self_prompted import self_prompted
from distill.errors import UserError
from distill.evaluate.benchmark.stage_times import Work, choose_size, expected_minutes
from distill.evaluate.measure import REPETITIONS
from distill.files import read_json, write_json
from distill.locks import locked
from distill.models.draft import MADE_FROM_TARGET
from distill.pipelines.job import Job
from distill.pipelines.measure import reads_answers
from distill.pipelines.rates import Sample, measure_rates, take_sample
from distill.pipelines.road import APART
from distill.pipelines.train import STATISTICS_ROWS
from distill.progress import quietly
from distill.ranks import processes

log = logging.getLogger(__name__)


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
    with locked(path.with_suffix(".lock"), "measuring this machine"):
        if (size := _recorded(path, jobs)) is not None:
            log.info("plan: size %s, as recorded in %s", size, path)
            return size
        log.info("plan: this machine is measured for about a minute, to choose a size")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, quietly():
            sample = take_sample(job, Path(folder))
            rates = measure_rates(job, sample, Path(folder))
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
        "no budget.tokens": job.trains
        and not (job.config.budget.tokens or job.config.budget.minutes),
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
    if sum(minutes[size].values()) > limit:
        log.warning("plan: none ends within plan.minutes=%g: it goes on with %s", limit, size)
    else:
        log.info("plan: size %s is the largest that ends within plan.minutes=%g", size, limit)
    for stage, took in minutes[size].items():
        log.info("plan: %s: about %.1f minutes", stage, took)


def _work(job: Job, sample: Sample) -> Work:
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
        learnt=float(config.budget.tokens or math.inf) if trained else 0.0,
        validated=trained * held_out * validation.supervised / config.trainer.validate_every,
        minutes=config.budget.minutes or math.inf,
        decoded_prompts=arms * prompts * sample.prompt,
        steps={
            batch: arms * (prompts // batch) * asked.max_new_tokens for batch in asked.batch_sizes
        },
    )
