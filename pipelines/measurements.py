"""Stage `measurements`: every candidate decodes. Rows only: nothing is pooled or judged yet.

What the rows do not depend on (`evaluate.margin`, `evaluate.floors`) is no part of its fingerprint,
so that another bar finds the same rows again.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.evaluate.measure import measure_candidates
from distill.evaluate.records import MEASUREMENTS, Prompt, write_rows
from distill.evaluate.shards import once, working
from distill.models.draft import load_draft
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.candidates import Candidate
from distill.pipelines.grid import make_grid
from distill.pipelines.inputs import (
    load_configured_target,
    machine,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.prompts import all_turns, find_conversations, tally
from distill.pipelines.shortlist import shortlist
from distill.pipelines.stage import run_stage
from distill.ranks import is_rank_zero
from distill.tracking.runs import Run

log = logging.getLogger(__name__)
NOT_MEASURED = ("gate", "margin", "floors", "prompts", "candidates")
"""Of the configuration: no input, or one by its content."""
WORK = "work"
"""What ranks and a restart share: unfinished until the stage is."""


def measurements(cfg: DictConfig, candidates: Sequence[Candidate], corpus: Artifact) -> Artifact:
    """`measurements.parquet`. All ranks take part.

    Counts: `prompts` (a tally), `teachers` (teacher-forced numbers by candidate) and
    `screening_passes`, as `distill.evaluate.outcome` takes them.
    """

    def produce(folder: Path, _: Run) -> dict[str, Any]:
        with working(folder / WORK):
            return _decode(cfg, candidates, corpus, folder)

    settings = _settings(cfg, candidates)
    return run_stage(
        cfg, "measurements", settings, [corpus], produce, collective=True, part_of="evaluate"
    )


def shared_ids(cfg: DictConfig, candidates: Sequence[Candidate]) -> int:
    """How many ids the target and all candidates have in common."""
    return min(shared_vocabulary(target_folder(cfg), one.folder).size for one in candidates)


def _settings(cfg: DictConfig, candidates: Sequence[Candidate]) -> dict[str, Any]:
    asked = {k: v for k, v in plain(cfg.evaluate).items() if k not in NOT_MEASURED}
    if not cfg.evaluate.racing:
        del asked["bootstrap"]  # only a race decides by intervals who decodes on
    return {
        "evaluate": asked,
        "prompts": _digest(cfg.evaluate.prompts),
        "candidates": [[one.name, one.sha256] for one in candidates],
        "target": target_identity(cfg).sha256,
        "dtype": cfg.target.dtype,
        "eos_token_ids": eos_token_ids(target_folder(cfg)),
        "hardware": machine(cfg),
        "seed": cfg.seed,
    }


def _decode(
    cfg: DictConfig, candidates: Sequence[Candidate], corpus: Artifact, folder: Path
) -> dict[str, Any]:
    conversations, too_long = find_conversations(cfg)
    target, work = load_configured_target(cfg), folder / WORK
    vocabulary = shared_ids(cfg, candidates)
    chosen = shortlist(
        cfg, candidates, target, lambda: load_corpus(corpus.path)["validation"], vocabulary, work
    )
    drafts = {
        one.name: load_draft(one.folder, dtype=target.dtype, device=target.device)
        for one in candidates
        if one.name in chosen.names
    }
    unrolled = once(
        work / "prompts.json", lambda: all_turns(cfg, target, conversations, vocabulary)
    )
    prompts = [Prompt(**one) for one in unrolled["prompts"]]
    grid = make_grid(cfg, vocabulary)
    rows = measure_candidates(target, drafts, prompts, grid, work, _progress)
    if is_rank_zero():
        write_rows(folder / MEASUREMENTS, rows)
    return {
        "prompts": tally(conversations, unrolled, too_long),
        "teachers": {name: asdict(teacher) for name, teacher in chosen.teachers.items()},
        "screening_passes": chosen.target_passes,
    }


def _digest(path: str | None) -> str | None:
    return path and hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()


def _progress(done: int, units: int, what: str) -> None:
    log.info("evaluate: %d of %d batches (%s)", done, units, what)
