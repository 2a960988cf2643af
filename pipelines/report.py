"""What every job that evaluates leaves in its run folder: a report and what it was drawn from."""

import json
import logging
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from distill.artifacts import MANIFEST, load
from distill.content import plain
from distill.errors import UserError
from distill.evaluate import outcome
from distill.evaluate.records import MEASUREMENTS, read_rows
from distill.evaluate.report.facts import Command, Curve, Facts, Training
from distill.evaluate.report.page import render_report
from distill.evaluate.report.training_plots import LOSSES
from distill.files import read_json, write_json, write_text
from distill.pipelines.job import Job
from distill.pipelines.judge import Judged
from distill.ranks import is_rank_zero
from distill.serving import transformers, vllm
from distill.text import one_line
from distill.tracking.client import without_credentials
from distill.tracking.history import histories
from distill.training.callbacks.candidates import (
    CANDIDATES,
    METRICS,
    candidate_folders,
    training_of,
)

log = logging.getLogger(__name__)

REPORT, SUMMARY = "report.html", "summary.json"


def check_run_folder(job: Job) -> None:
    """Refuse to write a report over that of another target, or over what is no report of ours.

    Raises:
        UserError: the run folder, chosen by hand, has one.
    """
    path = job.invocation.folder / SUMMARY
    if not path.exists():
        return
    remedy = "choose another folder with hydra.run.dir, or delete this one"
    other = _read_summary(path)
    if other is None:
        raise UserError(f"{path} is no summary of a job of this kind: {remedy}")
    if other["target_weights_sha256"] != job.target.identity.weights_sha256:
        raise UserError(
            f"{path.parent} holds the report of another target ({other['target']}): {remedy}"
        )


def summarize(job: Job, judged: Judged) -> dict[str, Any]:
    """The champion's numbers and the verdict; `evaluation.json` beside it holds the rest."""
    weights = job.target.identity.weights_sha256
    return {"target": job.target.name, "target_weights_sha256": weights, **judged.summary}


def write_report(job: Job, judged: Judged, summary: Mapping[str, Any]) -> Path:
    """report.html, summary.json, evaluation.json and measurements.parquet; also to MLflow.

    Returns:
        Where the page is.
    """
    folder = job.invocation.folder
    if is_rank_zero():
        write_json(folder / SUMMARY, summary)
        for name in (outcome.FILE, MEASUREMENTS):
            shutil.copyfile(judged.artifact.path / name, folder / name)
        _draw(job, judged, summary, folder / REPORT)
        # By name: the folder, chosen by hand, may hold anything else.
        for name in (REPORT, SUMMARY, outcome.FILE, MEASUREMENTS):
            if (folder / name).exists():
                job.run.log_file(folder / name, "report")
    return folder / REPORT


def _draw(job: Job, judged: Judged, summary: Mapping[str, Any], path: Path) -> None:
    """Write the page. Hours of measuring do not fail for a page that cannot be drawn."""
    try:
        write_text(path, render_report(_facts(job, judged, summary)))
    except OSError:  # the place, not the page
        raise
    except Exception as problem:
        reason = without_credentials(one_line(str(problem)) or type(problem).__name__)
        path.unlink(missing_ok=True)  # an earlier one tells other numbers
        log.warning(
            "the report could not be drawn (%s); all numbers are in %s", reason, path.parent
        )


def _read_summary(path: Path) -> dict[str, Any] | None:
    """What `summarize` once said; None for another program's file."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:  # no JSON, or no text at all
        return None
    ours = isinstance(found, dict) and {"target", "target_weights_sha256"} <= found.keys()
    return found if ours else None


def _facts(job: Job, judged: Judged, summary: Mapping[str, Any]) -> Facts:
    training = _training_folder(judged.draft_folder)
    config = yaml.safe_dump(plain(job.config), sort_keys=False, allow_unicode=True)
    return Facts(
        evaluation=judged.evaluation,
        rows=read_rows(judged.artifact.path / MEASUREMENTS),
        lineage=_lineage(job, judged, summary),
        commands=_commands(job, summary),
        config=without_credentials(config),
        training=_training(job, training) if training else Training(),
        certificate=_certificate(job, judged),
    )


def _training_folder(draft: Path) -> Path | None:
    """The finished training that a draft's folder belongs to."""
    folder = training_of(draft)
    return folder if folder and (folder / MANIFEST).exists() else None


def _training(job: Job, folder: Path) -> Training:
    found = histories(job.run, load(folder).fingerprint, tuple(LOSSES), "train/tokens")
    curves = {name: Curve(*map(list, zip(*points, strict=True))) for name, points in found.items()}
    return Training(
        curves,
        {path.name: read_json(path / METRICS) for path in candidate_folders(folder / CANDIDATES)},
    )


def _certificate(job: Job, judged: Judged) -> str | None:
    """The short form of the newest certificate of this very draft and target."""
    pair = (job.draft_identity(judged.draft_folder).sha256, job.target.identity.sha256)
    found = [
        artifact.path / "certificate.txt"
        for path in (job.output / "artifacts" / "certify").glob(f"*/{MANIFEST}")
        if (artifact := load(path.parent))
        and (artifact.manifest["settings"]["draft"], artifact.manifest["settings"]["target"])
        == pair
    ]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return newest.read_text(encoding="utf-8").strip() if newest else None


def _lineage(job: Job, judged: Judged, summary: Mapping[str, Any]) -> dict[str, Any]:
    names = ("target", "target_revision", "target_weights_sha256", "tokenizer_sha256")
    more = ("template_sha256", "draft_weights_sha256", "data_fingerprint", "git_commit")
    found, versions = job.machine, judged.artifact.manifest["versions"]
    shown = {
        **{name: judged.lineage[name] for name in (*names, *more)},
        "registered_model": summary.get("model_uri"),
        "export": summary.get("export_path"),
        "evaluation": judged.artifact.path,
        "mlflow_run": job.run.id,
        "hardware": f"{found['cpu']}, {found['cores']} cores",
        "gpus": found["gpus"] or None,
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "seed": job.config.seed,
    }
    return {name.replace("_", " "): value for name, value in shown.items() if value is not None}


def _commands(job: Job, summary: Mapping[str, Any]) -> list[Command]:
    overrides = list(job.invocation.overrides)
    rest = [one for one in overrides if not one.startswith(("pipeline=", "evaluate.gate="))]
    compared = f"compare.runs=[{job.invocation.folder},OTHER_RUN_FOLDER]"
    commands = [
        Command("This job", _distill(job, overrides)),
        Command(
            "This report, drawn again from the artifacts",
            _distill(job, ["pipeline=evaluate", *rest]),
        ),
        Command("Proof that this pair decodes exactly", _distill(job, ["pipeline=certify", *rest])),
        Command(
            "This evaluation beside another one", _distill(job, ["pipeline=compare", compared])
        ),
    ]
    if exported := summary.get("export_path"):
        served, k = job.target.name, summary["num_draft_tokens"]
        commands.append(Command("Serve with vLLM", vllm.command(served, exported, k)))
        commands.append(
            Command("Serve with transformers", transformers.command(served, exported, k))
        )
    return commands


def _distill(job: Job, overrides: list[str]) -> str:
    """A command line of this job's configuration: a folder of the user's own is part of it."""
    own = [f"--config-dir={folder}" for folder in job.invocation.config_dirs]
    shown = [without_credentials(one) for one in (*own, *overrides)]
    return shlex.join(["python", "-m", "distill", *shown])
