"""Verb `compare`: two evaluations of one target side by side, for the same prompts only."""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from distill.artifacts import make_writable
from distill.errors import UserError
from distill.evaluate import outcome
from distill.evaluate.compare import Comparison, Side, compare
from distill.evaluate.records import MEASUREMENTS, read_rows
from distill.evaluate.report.comparison import render_comparison
from distill.evaluate.report.tables import as_text, comparison_table
from distill.evaluate.statistics import Bootstrap
from distill.files import read_json, write_json, write_text
from distill.pipelines.job import Job
from distill.tracking.client import connect

RUN_ID = re.compile(r"(?:runs:/)?([0-9a-f]{32})")
LOGGED = ("report", "evaluation")
"""Where a job's run and an evaluation stage's run keep their files."""


def run(job: Job) -> Comparison:
    """Print the table; write compare.json and compare.html into the run folder.

    Raises:
        UserError: not two places, no evaluation at one, or nothing that can be compared.
    """
    places = job.config.compare.runs
    if len(places) != 2:
        raise UserError(
            f"compare.runs has {len(places)} places: give two, as compare.runs=[A,B]; each a run "
            "folder, an artifact folder of the stage judge, or the id of an MLflow run"
        )
    with TemporaryDirectory() as scratch:
        first, second = (
            _side(job, place, Path(scratch) / str(i)) for i, place in enumerate(places)
        )
    found = compare(first, second, Bootstrap(job.config.evaluate.bootstrap, job.config.seed))
    folder = job.invocation.folder
    write_json(folder / "compare.json", found.as_json())
    page = folder / "compare.html"
    write_text(page, render_comparison(found))
    sys.stdout.write(f"{as_text(comparison_table(found))}\ncomparison: {page}\n")
    return found


def _side(job: Job, place: str, scratch: Path) -> Side:
    match = RUN_ID.fullmatch(place)
    folder = _download(job, match.group(1), scratch) if match else Path(place).expanduser()
    for name in (outcome.FILE, MEASUREMENTS):
        if not (folder / name).is_file():
            raise UserError(
                f"{place} holds no evaluation (no {name}): give a run folder, an artifact folder "
                "of the stage judge, or the id of an MLflow run"
            )
    return Side(place, read_json(folder / outcome.FILE), read_rows(folder / MEASUREMENTS))


def _download(job: Job, run_id: str, scratch: Path) -> Path:
    """The files that an MLflow run logged, in a folder of this machine."""
    make_writable(job.output)
    client = connect(job.config.tracking, job.output)
    from mlflow.exceptions import MlflowException  # takes seconds, like `connect`

    try:
        logged = {item.path for item in client.list_artifacts(run_id)}
    except MlflowException as problem:
        raise UserError(f"MLflow has no run {run_id}: give its id, or its folder") from problem
    found = next((path for path in LOGGED if path in logged), None)
    if found is None:
        raise UserError(f"MLflow run {run_id} logged no evaluation: give the run of such a job")
    scratch.mkdir()
    return Path(client.download_artifacts(run_id, found, str(scratch)))
