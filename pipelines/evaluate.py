"""Verb `evaluate`: what was judged, as a report, tables and verdicts."""

import sys
from pathlib import Path

from distill.evaluate.verdict import DO_NOT_SHIP
from distill.pipelines.job import Job
from distill.pipelines.judge import Judged
from distill.pipelines.report import summarize, write_report
from distill.ranks import is_rank_zero


def run(job: Job, judged: Judged) -> Path:
    """Draw the report, print the tables and the verdicts; returns where the page is.

    Raises:
        SystemExit: `evaluate.gate=true` and the verdict is `do not ship` (status 1).
    """
    page = write_report(job, judged, summarize(job, judged))
    if is_rank_zero():
        sys.stdout.write(f"{judged.table}report: {page}\n")
    if job.config.evaluate.gate and judged.outcome.verdict == DO_NOT_SHIP:
        sys.exit(1)
    return page
