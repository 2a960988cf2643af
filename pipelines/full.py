"""Verb `full`: the whole road, and a summary of it."""

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from distill.errors import UserError
from distill.pipelines import evaluate
from distill.pipelines.export import Exported
from distill.pipelines.job import Job
from distill.pipelines.report import SUMMARY, summarize, write_report
from distill.tracking.outbox import TrackingAwayError
from distill.tracking.registry import Champion
from distill.tracking.runs import numbers

log = logging.getLogger(__name__)


def run(job: Job, stage: Callable[[str], Any]) -> dict[str, Any]:
    """Distil, evaluate, register, export; ends with table, verdict and `summary: <path>`."""
    started = time.monotonic()
    judged = stage("judge")
    evaluate.run(job, judged)
    champion = _registered(stage)
    exported, refusal = _exported(stage)
    summary = {
        **summarize(job, judged),
        "model_uri": champion and champion.version_uri,
        "export_path": exported and str(exported.folder),
        "wall_seconds": round(time.monotonic() - started, 1),
    }
    if job.trains:
        training = stage("train")
        summary["train_tokens"] = training.train_tokens
        summary["train_tokens_per_second"] = training.tokens_per_second
    page = write_report(job, judged, summary)
    job.run.log_metrics(dict(numbers(summary)))
    sys.stdout.write(f"summary: {page.with_name(SUMMARY)}\n")
    if refusal is not None:
        raise refusal
    return summary


def _registered(stage: Callable[[str], Any]) -> Champion | None:
    """The registered champion; None, with a warning, when MLflow does not answer any more."""
    try:
        return stage("register")
    except TrackingAwayError as away:
        log.warning("the champion is not registered: %s", away)
        return None


def _exported(stage: Callable[[str], Any]) -> tuple[Exported | None, UserError | None]:
    """The export, or why there is none: what was measured is reported all the same."""
    try:
        return stage("export"), None
    except UserError as refusal:
        return None, refusal
