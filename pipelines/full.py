"""The whole road: each stage asks for what it reads, so the last two pull all the others."""

import sys
import time
from typing import Any

from omegaconf import DictConfig

from distill.pipelines import evaluate, export, register, train
from distill.pipelines.candidates import trains
from distill.pipelines.reporting import SUMMARY, summarize, write_report
from distill.pipelines.stage import as_job, current_job
from distill.tracking.runs import numbers


@as_job
def run(cfg: DictConfig) -> dict[str, Any]:
    """Distil, evaluate, register, export; ends with table, verdict and `summary: <path>`."""
    started = time.monotonic()
    measured = evaluate.run(cfg)
    champion = register.run(cfg)
    exported = export.run(cfg)
    summary = {
        **summarize(cfg, measured),
        "model_uri": champion.version_uri,
        "export_path": str(exported.path / exported.counts["folder"]),
        "wall_seconds": round(time.monotonic() - started, 1),
    }
    if trains(cfg):
        counts = train.run(cfg).counts
        summary["train_tokens"] = counts["train_tokens"]
        summary["train_tokens_per_second"] = counts["tokens_per_second"]
    page = write_report(cfg, measured, summary)
    current_job().run.log_metrics(dict(numbers(summary)))
    path = page.with_name(SUMMARY)
    sys.stdout.write(f"summary: {path}\n")
    return summary
