"""Stage `compare`: two evaluations of one target side by side, for the same prompts only."""

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from omegaconf import DictConfig

from distill.artifacts import make_writable, write_json
from distill.errors import UserError
from distill.evaluate import outcome
from distill.evaluate.compare import Comparison, compare
from distill.evaluate.records import MEASUREMENTS, read_rows
from distill.evaluate.report.comparison import comparison_view, render_comparison
from distill.evaluate.sides import Side
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.tables import as_text
from distill.pipelines.inputs import output_root, plain
from distill.pipelines.reporting import run_folder
from distill.schema import TrackingConfig
from distill.tracking.client import connect

RUN_ID = re.compile(r"(?:runs:/)?([0-9a-f]{32})")
LOGGED = ("report", "evaluation")
"""Where a job's run and an evaluation stage's run keep their files."""


def run(cfg: DictConfig) -> Comparison:
    """Print the table; write compare.json and compare.html into the run folder.

    Raises:
        UserError: not two places, no evaluation at one, or nothing that can be compared.
    """
    places = list(cfg.runs)
    if len(places) != 2:
        raise UserError(
            f"runs has {len(places)} places: give two, as runs=[A,B]; each a run folder, an "
            "artifact folder of the stage evaluate, or the id of an MLflow run"
        )
    with TemporaryDirectory() as scratch:
        first, second = (
            _side(cfg, place, Path(scratch) / str(i)) for i, place in enumerate(places)
        )
    found = compare(first, second, Bootstrap(cfg.evaluate.bootstrap, cfg.seed))
    folder = run_folder()
    write_json(folder / "compare.json", found.as_json())
    page = folder / "compare.html"
    page.write_text(render_comparison(found), encoding="utf-8")
    sys.stdout.write(f"{as_text(comparison_view(found))}\ncomparison: {page}\n")
    return found


def _side(cfg: DictConfig, place: str, scratch: Path) -> Side:
    match = RUN_ID.fullmatch(place)
    folder = _download(cfg, match.group(1), scratch) if match else Path(place).expanduser()
    for name in (outcome.FILE, MEASUREMENTS):
        if not (folder / name).is_file():
            raise UserError(
                f"{place} holds no evaluation (no {name}): give a run folder, an artifact folder "
                "of the stage evaluate, or the id of an MLflow run"
            )
    evaluation = json.loads((folder / outcome.FILE).read_text(encoding="utf-8"))
    return Side(place, evaluation, read_rows(folder / MEASUREMENTS))


def _download(cfg: DictConfig, run_id: str, scratch: Path) -> Path:
    """The files that an MLflow run logged, in a folder of this machine."""
    make_writable(output_root(cfg))
    client = connect(TrackingConfig(**plain(cfg.tracking)), output_root(cfg))
    from mlflow.exceptions import MlflowException

    try:
        logged = {item.path for item in client.list_artifacts(run_id)}
    except MlflowException as problem:
        raise UserError(f"MLflow has no run {run_id}: give its id, or its folder") from problem
    found = next((path for path in LOGGED if path in logged), None)
    if found is None:
        raise UserError(f"MLflow run {run_id} logged no evaluation: give the run of such a job")
    scratch.mkdir()
    return Path(client.download_artifacts(run_id, found, str(scratch)))
