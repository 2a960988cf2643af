"""Stage `judge`: the measured rows pooled, the champion chosen, the verdict given."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.artifacts import Artifact
from distill.content import content
from distill.evaluate.candidates import Candidate
from distill.evaluate.conclusion import Bar, Conclusion, conclude
from distill.evaluate.load import Load
from distill.evaluate.outcome import FILE, ONLY_IN_FILE, Considered, Evaluation, Outcome
from distill.evaluate.prompts import check_floors
from distill.evaluate.records import MEASUREMENTS, read_rows, write_rows
from distill.evaluate.report.tables import as_text, correlations_table, load_text
from distill.files import read_json, write_json, write_text
from distill.pipelines.job import Job
from distill.pipelines.measure import Measured
from distill.tracking.client import without_credentials
from distill.tracking.registry import COMMIT_TAG
from distill.tracking.runs import Run
from distill.versions import git_state

TABLE = "table.txt"
LINEAGE = ("verdict", "alpha", "alpha_low", "alpha_high", "speedup", "speedup_low", "speedup_high")


@dataclass(frozen=True)
class Judged:
    """An evaluation that is concluded.

    evaluation: all of `evaluation.json`. summary: its part that `summary.json` holds. outcome: its
    champion and verdict. draft_folder: where the champion is now; outputs and drafts may be moved
    after they were measured. lineage: what the champion came from and what it does, without local
    paths but a target's own id.
    """

    artifact: Artifact
    evaluation: Mapping[str, Any]
    summary: Mapping[str, Any]
    outcome: Outcome
    draft_folder: Path
    lineage: Mapping[str, Any]

    @property
    def table(self) -> str:
        """What a person reads at a terminal."""
        return (self.artifact.path / TABLE).read_text(encoding="utf-8")


def run(job: Job, measured: Measured) -> Judged:
    """`evaluation.json`, the rows it is of, and a table."""
    check_floors(job.config.evaluate, measured.prompts["domains"])
    settings = {
        **content(job.config.evaluate, "judge"),
        "target": job.target.name,
        "seed": job.config.seed,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        return _judge(job, measured, folder, stage)

    artifact = job.make("judge", settings, [measured.artifact], produce, verb="evaluate")
    evaluation = read_json(artifact.path / FILE)
    outcome = Outcome.from_json(evaluation)
    best = next(one for one in measured.candidates if one.name == outcome.draft)
    return Judged(
        artifact,
        evaluation,
        artifact.counts,
        outcome,
        best.folder.absolute(),
        _lineage(job, measured, outcome),
    )


def _judge(job: Job, measured: Measured, folder: Path, stage: Run) -> Mapping[str, Any]:
    asked = job.config.evaluate
    rows = read_rows(measured.artifact.path / MEASUREMENTS)
    bar = Bar(asked.margin, asked.floors, asked.decoding_margin)
    loads = [
        (load, conclude([row for row in rows if load.of(row)], bar, _foretold(measured, load)))
        for load in measured.grid.loads()
    ]
    evaluation = Evaluation(
        loads=loads,
        considered=[_considered(one, measured) for one in measured.candidates],
        prompts=measured.prompts,
        target={
            "id": job.target.name,
            "weights_sha256": job.target.identity.weights_sha256,
            "parameters": job.target.identity.parameters,
        },
    ).as_json()
    write_rows(folder / MEASUREMENTS, rows)
    write_json(folder / FILE, evaluation)
    write_text(folder / TABLE, _text(loads, evaluation))
    stage.log_table("candidates", [_flat(row) for row in evaluation["table"]])
    for name in (MEASUREMENTS, FILE, TABLE):
        stage.log_file(folder / name, "evaluation")
    return {name: value for name, value in evaluation.items() if name not in ONLY_IN_FILE}


def _foretold(measured: Measured, load: Load) -> dict[str, float]:
    """What held-out rows say of each candidate's acceptance under the load's sampling."""
    return {name: one.at(load.sampling) for name, one in measured.held_out.items()}


def _text(loads: list[tuple[Load, Conclusion]], evaluation: Mapping[str, Any]) -> str:
    texts = [load_text(load, one) for load, one in loads]
    if evaluation["proxies"] is not None:
        texts.append(as_text(correlations_table(evaluation["proxies"])))
    return "".join(texts)


def _considered(one: Candidate, measured: Measured) -> Considered:
    return Considered(
        one.name,
        one.weights_sha256,
        one.parameters,
        one.metrics.get("tokens"),
        measured.held_out.get(one.name),
    )


def _lineage(job: Job, measured: Measured, outcome: Outcome) -> dict[str, Any]:
    identity, git = job.target.identity, git_state()
    return {
        **{name: getattr(outcome, name) for name in LINEAGE},
        "num_draft_tokens": outcome.num_draft_tokens,
        "target": identity.id,
        "target_revision": identity.revision,
        "target_weights_sha256": identity.weights_sha256,
        "tokenizer_sha256": identity.tokenizer_sha256,
        "template_sha256": identity.template_sha256,
        "template_flags": without_credentials(identity.template_flags) or "none",
        "draft_weights_sha256": outcome.draft_weights_sha256,
        "data_fingerprint": measured.corpus.artifact.fingerprint,
        COMMIT_TAG: git.commit if git else None,
    }


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a table for MLflow: intervals as three columns, no lists."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{end}": number for end, number in value.items()}
        elif not isinstance(value, list):
            flat[key] = value
    return flat
