"""What every job that evaluates leaves in its run folder: a report and what it was drawn from."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from distill.artifacts import MANIFEST, Artifact, load, write_json
from distill.errors import UserError
from distill.evaluate import outcome
from distill.evaluate.records import MEASUREMENTS, read_rows
from distill.evaluate.report.facts import Command, Curve, Facts, Training
from distill.evaluate.report.page import render_report
from distill.evaluate.report.training import LOSSES
from distill.models.identity import identify
from distill.pipelines.inputs import (
    cache_root,
    machine,
    output_root,
    plain,
    target_identity,
    target_name,
)
from distill.pipelines.lineage import lineage
from distill.pipelines.stage import current_job
from distill.ranks import is_rank_zero
from distill.schema import ModelConfig
from distill.serving import transformers, vllm
from distill.tracking.client import without_credentials
from distill.tracking.history import histories
from distill.training.callbacks.candidates import (
    CANDIDATES,
    METRICS,
    candidate_folders,
    training_of,
)

REPORT, SUMMARY = "report.html", "summary.json"


def run_folder() -> Path:
    """This job's own folder."""
    return Path(HydraConfig.get().runtime.output_dir)


def check_run_folder(cfg: DictConfig) -> None:
    """Refuse to write a report over that of another target, or over what is no report of ours.

    Raises:
        UserError: the run folder, chosen by hand, has one.
    """
    path = run_folder() / SUMMARY
    if not path.exists():
        return
    remedy = "choose another folder with hydra.run.dir, or delete this one"
    other = _summary(path)
    if other is None:
        raise UserError(f"{path} is no summary of a job of this kind: {remedy}")
    if other["target_weights_sha256"] != target_identity(cfg).weights_sha256:
        raise UserError(
            f"{path.parent} holds the report of another target ({other['target']}): {remedy}"
        )


def _summary(path: Path) -> dict[str, Any] | None:
    """What `summarize` once said; None for another program's file."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError:  # no JSON, or no text at all
        return None
    ours = isinstance(found, dict) and {"target", "target_weights_sha256"} <= found.keys()
    return found if ours else None


def summarize(cfg: DictConfig, measured: Artifact) -> dict[str, Any]:
    """The champion's numbers and the verdict; `evaluation.json` beside it holds the rest."""
    found = {name: value for name, value in measured.counts.items() if name != "draft_folder"}
    weights = target_identity(cfg).weights_sha256
    return {"target": target_name(cfg), "target_weights_sha256": weights, **found}


def write_report(cfg: DictConfig, measured: Artifact, summary: dict[str, Any]) -> Path:
    """report.html, summary.json, evaluation.json and measurements.parquet; also to MLflow.

    Returns:
        Where the page is.
    """
    folder = run_folder()
    if is_rank_zero():
        page = render_report(_facts(cfg, measured, summary))
        (folder / REPORT).write_text(page, encoding="utf-8")
        write_json(folder / SUMMARY, summary)
        for name in (outcome.FILE, MEASUREMENTS):
            shutil.copyfile(measured.path / name, folder / name)
        current_job().run.log_folder(folder, "report")
    return folder / REPORT


def _facts(cfg: DictConfig, measured: Artifact, summary: dict[str, Any]) -> Facts:
    training = _training_folder(Path(measured.counts["draft_folder"]))
    return Facts(
        evaluation=json.loads((measured.path / outcome.FILE).read_text(encoding="utf-8")),
        rows=read_rows(measured.path / MEASUREMENTS),
        lineage=_lineage(cfg, measured, summary),
        commands=_commands(cfg, summary),
        config=without_credentials(yaml.safe_dump(plain(cfg), sort_keys=False, allow_unicode=True)),
        training=_training(training) if training else Training(),
        certificate=_certificate(cfg, measured),
    )


def _training_folder(draft: Path) -> Path | None:
    """The finished training that a draft's folder belongs to."""
    folder = training_of(draft)
    return folder if folder and (folder / MANIFEST).exists() else None


def _training(folder: Path) -> Training:
    names = tuple(LOSSES)
    found = histories(current_job().run, load(folder).fingerprint, names, "train/tokens")
    curves = {name: Curve(*map(list, zip(*points, strict=True))) for name, points in found.items()}
    return Training(
        curves,
        {
            path.name: json.loads((path / METRICS).read_text(encoding="utf-8"))
            for path in candidate_folders(folder / CANDIDATES)
        },
    )


def _certificate(cfg: DictConfig, measured: Artifact) -> str | None:
    """The short form of the newest certificate of this very draft and target."""
    draft = measured.counts["draft_folder"]
    identity = identify(Path(draft), ModelConfig("folder", draft), cache_root(cfg))
    pair = (identity.sha256, target_identity(cfg).sha256)
    found = [
        artifact.path / "certificate.txt"
        for path in (output_root(cfg) / "artifacts" / "certify").glob(f"*/{MANIFEST}")
        if (artifact := load(path.parent))
        and (artifact.manifest["settings"]["draft"], artifact.manifest["settings"]["target"])
        == pair
    ]
    newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
    return newest.read_text(encoding="utf-8").strip() if newest else None


def _lineage(cfg: DictConfig, measured: Artifact, summary: dict[str, Any]) -> dict[str, Any]:
    facts = lineage(cfg, measured)
    names = ("target", "target_revision", "target_weights_sha256", "tokenizer_sha256")
    more = ("template_sha256", "draft_weights_sha256", "data_fingerprint", "git_commit")
    found = machine(cfg)
    shown = {
        **{name: facts[name] for name in (*names, *more)},
        "registered_model": summary.get("model_uri"),
        "export": summary.get("export_path"),
        "evaluation": measured.path,
        "mlflow_run": current_job().run.id,
        "hardware": f"{found['cpu']}, {found['cores']} cores",
        "gpus": found["gpus"] or None,
        "versions": ", ".join(f"{k} {v}" for k, v in measured.manifest["versions"].items()),
        "seed": cfg.seed,
    }
    return {name.replace("_", " "): value for name, value in shown.items() if value is not None}


def _commands(cfg: DictConfig, summary: dict[str, Any]) -> list[Command]:
    overrides = list(HydraConfig.get().overrides.task)
    rest = [one for one in overrides if not one.startswith(("pipeline=", "evaluate.gate="))]
    commands = [
        Command("This job", _distill(overrides)),
        Command(
            "This report, drawn again from the artifacts", _distill(["pipeline=report", *rest])
        ),
        Command("Proof that this pair decodes exactly", _distill(["pipeline=certify", *rest])),
        Command(
            "This evaluation beside another one",
            _distill(["pipeline=compare", f"runs=[{run_folder()},OTHER_RUN_FOLDER]"]),
        ),
    ]
    if exported := summary.get("export_path"):
        served, k = target_name(cfg), summary["num_draft_tokens"]
        commands.append(Command("Serve with vLLM", vllm.command(served, exported, k)))
        commands.append(
            Command("Serve with transformers", transformers.command(served, exported, k))
        )
    return commands


def _distill(overrides: list[str]) -> str:
    """A command line of this job's configuration: a folder of the user's own is part of it."""
    sources = HydraConfig.get().runtime.config_sources
    own = [f"--config-dir={one.path}" for one in sources if one.provider == "command-line"]
    return shlex.join(["python", "-m", "distill", *own, *overrides])
