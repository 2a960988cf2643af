"""Stage `evaluate`: real speculative decoding of every candidate, the champion and the verdict."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.evaluate.load import Load
from distill.evaluate.measure import Evaluation, conclude
from distill.evaluate.outcome import FILE, ONLY_IN_FILE, Considered, Outcome
from distill.evaluate.proxies import Teacher
from distill.evaluate.records import MEASUREMENTS, read_rows, write_rows
from distill.evaluate.tables import as_text
from distill.evaluate.verdict import DO_NOT_SHIP
from distill.evaluate.views import load_view, proxies_view
from distill.pipelines import generate, prepare
from distill.pipelines.candidates import Candidate, find_candidates, trains
from distill.pipelines.grid import make_bar, make_grid
from distill.pipelines.inputs import plain, target_identity, target_name
from distill.pipelines.measurements import measurements, shared_ids
from distill.pipelines.prompts import check_floors
from distill.pipelines.reporting import summarize, write_report
from distill.pipelines.shortlist import reads_rows
from distill.pipelines.stage import as_job, run_stage
from distill.ranks import is_rank_zero
from distill.tracking.runs import Run

TABLE = "table.txt"
JUDGED_BY = ("bootstrap", "margin", "floors")
"""What decides the conclusion once everything is measured."""


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Measure, draw the report, print the tables and the verdicts.

    Raises:
        UserError: nothing to measure, or a candidate of another tokenizer.
        SystemExit: `evaluate.gate=true` and the verdict is `do not ship` (status 1).
    """
    measured = measure(cfg)
    page = write_report(cfg, measured, summarize(cfg, measured))
    if is_rank_zero():
        sys.stdout.write((measured.path / TABLE).read_text(encoding="utf-8"))
        sys.stdout.write(f"report: {page}\n")
    if cfg.evaluate.gate and measured.counts["verdict"] == DO_NOT_SHIP:
        sys.exit(1)
    return measured


def measure(cfg: DictConfig) -> Artifact:
    """Counts are what `outcome` describes, and the champion's folder; the artifact has every row.

    The folder is where the champion is now: outputs and drafts may be moved after they were
    measured. All ranks take part in decoding; rank zero judges.
    """
    candidates = find_candidates(cfg)
    answered = trains(cfg) or reads_rows(candidates, cfg.evaluate.max_candidates)
    corpus = generate.run(cfg) if answered else prepare.run(cfg)
    decoded = measurements(cfg, candidates, corpus)
    check_floors(cfg, decoded.counts["prompts"]["domains"])
    settings = {
        **{name: plain(cfg.evaluate[name]) for name in JUDGED_BY},
        "target": target_name(cfg),
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        return _judge(cfg, candidates, decoded, folder, stage)

    measured = run_stage(cfg, "evaluate", settings, [corpus, decoded], produce)
    best = next(c for c in candidates if c.name == measured.counts["draft"])
    return _with_counts(measured, draft_folder=str(best.folder.absolute()))


def _judge(
    cfg: DictConfig,
    candidates: Sequence[Candidate],
    decoded: Artifact,
    folder: Path,
    stage: Run,
) -> dict[str, Any]:
    rows, bar = read_rows(decoded.path / MEASUREMENTS), make_bar(cfg)
    grid = make_grid(cfg, shared_ids(cfg, candidates))
    held_out = {name: one["alpha"] for name, one in decoded.counts["teachers"].items()}
    loads = [
        (load, conclude([row for row in rows if load.of(row)], bar, held_out))
        for load in grid.loads()
    ]
    outcome = Outcome(
        loads=loads,
        considered=[_considered(one, decoded.counts["teachers"]) for one in candidates],
        num_draft_tokens=grid.num_draft_tokens,
        prompts=decoded.counts["prompts"],
        target=_target(cfg),
        screening_passes=decoded.counts["screening_passes"],
    ).as_json()
    write_rows(folder / MEASUREMENTS, rows)
    write_json(folder / FILE, outcome)
    (folder / TABLE).write_text(_text(loads, outcome), encoding="utf-8")
    stage.log_table("candidates", [_flat(row) for row in outcome["table"]])
    for name in (MEASUREMENTS, FILE, TABLE):
        stage.log_file(folder / name, "evaluation")
    return {name: value for name, value in outcome.items() if name not in ONLY_IN_FILE}


def _with_counts(artifact: Artifact, **more: Any) -> Artifact:
    counts = {**artifact.counts, **more}
    return replace(artifact, manifest={**artifact.manifest, "counts": counts})


def _target(cfg: DictConfig) -> dict[str, Any]:
    identity = target_identity(cfg)
    return {
        "id": target_name(cfg),
        "weights_sha256": identity.weights_sha256,
        "parameters": identity.parameters,
    }


def _text(loads: list[tuple[Load, Evaluation]], outcome: dict[str, Any]) -> str:
    views = [load_view(load, one) for load, one in loads]
    if outcome["proxies"] is not None:
        views.append(as_text(proxies_view(outcome["proxies"])))
    return "".join(views)


def _considered(one: Candidate, teachers: dict[str, Any]) -> Considered:
    found = teachers.get(one.name)
    return Considered(
        one.name,
        one.weights_sha256,
        one.parameters,
        one.metrics.get("tokens"),
        found and Teacher(**found),
    )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """A line of a table for MLflow: intervals as three columns, no lists."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{key}_{end}": number for end, number in value.items()}
        elif not isinstance(value, list):
            flat[key] = value
    return flat
