"""Stage `report`: the page of an evaluation, drawn again from the artifacts."""

import sys
from pathlib import Path

from omegaconf import DictConfig

from distill.pipelines import evaluate
from distill.pipelines.reporting import summarize, write_report
from distill.pipelines.stage import as_job


@as_job
def run(cfg: DictConfig) -> Path:
    """`report.html` in the run folder; evaluates first where that is still to do."""
    measured = evaluate.measure(cfg)
    page = write_report(cfg, measured, summarize(cfg, measured))
    sys.stdout.write(f"report: {page}\n")
    return page
