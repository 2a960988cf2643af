"""Stage `evaluate`: real speculative decoding of every candidate, the champion and the verdict."""

import hashlib
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.data.corpus import load_corpus
from distill.evaluate.load import Load
from distill.evaluate.measure import Evaluation, Grid, measure_candidates
from distill.evaluate.outcome import FILE, ONLY_IN_FILE, Considered, Outcome
from distill.evaluate.records import Prompt, write_rows
from distill.evaluate.shards import once, working
from distill.evaluate.tables import as_text
from distill.evaluate.verdict import DO_NOT_SHIP
from distill.evaluate.views import load_view, proxies_view
from distill.models.draft import load_draft
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate, prepare
from distill.pipelines.candidates import Candidate, find_candidates, trains
from distill.pipelines.grid import make_bar, make_grid
from distill.pipelines.inputs import (
    load_configured_target,
    machine,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.prompts import all_turns, find_conversations, tally
from distill.pipelines.reporting import summarize, write_report
from distill.pipelines.shortlist import Shortlist, reads_rows, shortlist
from distill.pipelines.stage import as_job, run_stage
from distill.ranks import is_rank_zero
from distill.tracking.runs import Run

log = logging.getLogger(__name__)
TABLE, MEASUREMENTS = "table.txt", "measurements.parquet"
NOT_MEASURED = ("gate", "prompts", "candidates")
"""Of the configuration: no input, or one by its content."""
WORK = "work"
"""What ranks and a restart share: unfinished until the stage is."""


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
    measured. All ranks take part.
    """
    candidates = find_candidates(cfg)
    answered = trains(cfg) or reads_rows(candidates, cfg.evaluate.max_candidates)
    corpus = generate.run(cfg) if answered else prepare.run(cfg)
    vocabulary = min(shared_vocabulary(target_folder(cfg), c.folder).size for c in candidates)
    settings = {
        "evaluate": {k: v for k, v in plain(cfg.evaluate).items() if k not in NOT_MEASURED},
        "prompts": _digest(cfg.evaluate.prompts),
        "candidates": [[c.name, c.weights_sha256] for c in candidates],
        "target": target_identity(cfg).weights_sha256,
        "dtype": cfg.target.dtype,
        "eos_token_ids": eos_token_ids(target_folder(cfg)),
        "hardware": machine(cfg),
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        with working(folder / WORK):
            return _evaluate(cfg, corpus, candidates, vocabulary, folder, stage)

    measured = run_stage(cfg, "evaluate", settings, [corpus], produce, collective=True)
    best = next(c for c in candidates if c.name == measured.counts["draft"])
    return _with_counts(measured, draft_folder=str(best.folder.absolute()))


def _evaluate(
    cfg: DictConfig,
    corpus: Artifact,
    candidates: list[Candidate],
    vocabulary: int,
    folder: Path,
    stage: Run,
) -> dict[str, Any]:
    conversations, too_long = find_conversations(cfg)
    target = load_configured_target(cfg)
    work = folder / WORK
    chosen = shortlist(
        cfg, candidates, target, lambda: load_corpus(corpus.path)["validation"], vocabulary, work
    )
    drafts = {
        c.name: load_draft(c.folder, dtype=target.dtype, device=target.device)
        for c in candidates
        if c.name in chosen.names
    }
    unrolled = once(
        work / "prompts.json", lambda: all_turns(cfg, target, conversations, vocabulary)
    )
    prompts = [Prompt(**one) for one in unrolled["prompts"]]
    grid = make_grid(cfg, vocabulary, eos_token_ids(target_folder(cfg)))
    found = measure_candidates(target, drafts, prompts, grid, make_bar(cfg), work, _progress)
    used = tally(conversations, len(prompts), too_long + unrolled["too_long"])
    return _report(cfg, grid, found, candidates, chosen, used, folder, stage)


def _report(
    cfg: DictConfig,
    grid: Grid,
    evaluations: list[Evaluation],
    candidates: list[Candidate],
    chosen: Shortlist,
    prompts: dict[str, Any],
    folder: Path,
    stage: Run,
) -> dict[str, Any]:
    loads = list(zip(grid.loads(), evaluations, strict=True))
    identity = target_identity(cfg)
    outcome = Outcome(
        loads=loads,
        considered=[_considered(one, chosen) for one in candidates],
        num_draft_tokens=grid.num_draft_tokens,
        prompts=prompts,
        target={
            "id": cfg.target.id,
            "weights_sha256": identity.weights_sha256,
            "parameters": identity.parameters,
        },
        screening_passes=chosen.target_passes,
    ).as_json()
    if is_rank_zero():
        write_rows(folder / MEASUREMENTS, [row for one in evaluations for row in one.rows])
        write_json(folder / FILE, outcome)
        (folder / TABLE).write_text(_text(loads, outcome), encoding="utf-8")
        stage.log_table("candidates", [_flat(row) for row in outcome["table"]])
        for name in (MEASUREMENTS, FILE, TABLE):
            stage.log_file(folder / name, "evaluation")
    return {name: value for name, value in outcome.items() if name not in ONLY_IN_FILE}


def _with_counts(artifact: Artifact, **more: Any) -> Artifact:
    counts = {**artifact.counts, **more}
    return replace(artifact, manifest={**artifact.manifest, "counts": counts})


def _text(loads: list[tuple[Load, Evaluation]], outcome: dict[str, Any]) -> str:
    views = [load_view(load, one) for load, one in loads]
    if outcome["proxies"] is not None:
        views.append(as_text(proxies_view(outcome["proxies"])))
    return "".join(views)


def _considered(one: Candidate, chosen: Shortlist) -> Considered:
    return Considered(
        one.name,
        one.weights_sha256,
        one.parameters,
        one.metrics.get("tokens"),
        chosen.teachers.get(one.name),
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


def _digest(path: str | None) -> str | None:
    return path and hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()


def _progress(done: int, units: int, what: str) -> None:
    log.info("evaluate: %d of %d batches (%s)", done, units, what)
