"""`pipeline=benchmark what=selection`: what screening and racing save, and what they cost."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.errors import UserError
from distill.evaluate.outcome import FILE
from distill.evaluate.records import MEASUREMENTS, read_rows
from distill.evaluate.screening import choose
from distill.evaluate.selection import Way, choices
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.tables import as_text, selection_table
from distill.pipelines import evaluate
from distill.pipelines.inputs import check_at_least
from distill.pipelines.stage import run_stage
from distill.pipelines.training_benchmark import RESULTS, TABLE
from distill.tracking.runs import Run

EVERY = 1_000_000
"""More candidates than anyone has: all are decoded."""


def selection(cfg: DictConfig) -> Artifact:
    """Decode every candidate at every k over every prompt, then choose again in cheaper ways.

    Raises:
        UserError: several loads, or too few candidates to screen.
    """
    check_at_least(1, "benchmark", {"orders": cfg.benchmark.orders})
    asked = cfg.evaluate
    if len(asked.samplings) * len(asked.batch_sizes) > 1:
        raise UserError("what=selection is of one load: give one sampling and one batch size")
    whole = cfg.copy()
    whole.evaluate.max_candidates, whole.evaluate.racing = EVERY, False
    measured = evaluate.measure(whole)
    settings = {
        "what": "selection",
        "max_candidates": asked.max_candidates,
        "bootstrap": asked.bootstrap,
        "orders": cfg.benchmark.orders,
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        found = json.loads((measured.path / FILE).read_text(encoding="utf-8"))
        rows = read_rows(measured.path / MEASUREMENTS)
        held_out = {one["name"]: one["alpha"] for one in found["candidates"]}
        ways = _ways(held_out, asked.max_candidates, found["passes_share"] - 1.0)
        bootstrap = Bootstrap(asked.bootstrap, cfg.seed)
        lines = choices(rows, ways, held_out, bootstrap, cfg.benchmark.orders, cfg.seed)
        table = selection_table(lines, f"{found['draft']} at k={found['num_draft_tokens']}")
        (folder / TABLE).write_text(as_text(table, 110), encoding="utf-8")
        write_json(folder / RESULTS, {"lines": [asdict(line) for line in lines], **settings})
        stage.log_folder(folder, "benchmark")
        return {"passes_share": {line.way: line.passes_share for line in lines}}

    return run_stage(cfg, "benchmark", settings, [measured], produce)


def _ways(held_out: dict[str, Any], most: int, screening: float) -> list[Way]:
    """screening: share of the passes that it took where no training measured its checkpoints."""
    if len(held_out) <= most or None in held_out.values():
        raise UserError(
            f"what=selection: {len(held_out)} candidates leave nothing to screen out: name more in "
            "evaluate.candidates, or lower evaluate.max_candidates"
        )
    everyone, few = list(held_out), choose(held_out, list(held_out), most)
    return [
        Way("screened", few, racing=False, screening=screening),
        Way("raced", everyone, racing=True),
        Way("screened and raced", few, racing=True, screening=screening),
    ]
