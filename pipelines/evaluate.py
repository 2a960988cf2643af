"""Stage `evaluate`: real speculative decoding of every candidate, the champion and the verdict."""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.evaluate.measure import Evaluation, measure_candidates
from distill.evaluate.records import Prompt
from distill.evaluate.screening import Trajectory, choose, teacher_forced
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.tables import as_text, candidates_table
from distill.evaluate.verdict import SHIP
from distill.models.draft import load_draft
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate
from distill.pipelines.candidates import Candidate, find_candidates
from distill.pipelines.inputs import (
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.speculative import Sampling
from distill.tracking.runs import Run, numbers
from distill.versions import hardware

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)
TABLE = "table.txt"


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Measure, print the table and the verdict.

    Raises:
        UserError: nothing to measure, or a candidate of another tokenizer.
        SystemExit: `evaluate.gate=true` and the verdict is not `ship` (status 1).
    """
    measured = measure(cfg)
    sys.stdout.write((measured.path / TABLE).read_text())
    if cfg.evaluate.gate and measured.counts["verdict"] != SHIP:
        sys.exit(1)
    return measured


def measure(cfg: DictConfig) -> Artifact:
    """Counts hold the champion's numbers, folder and verdict; the folder every measurement."""
    corpus = generate.run(cfg)
    candidates = find_candidates(cfg)
    vocabulary = min(shared_vocabulary(target_folder(cfg), c.folder).size for c in candidates)
    settings = {
        "evaluate": {k: v for k, v in plain(cfg.evaluate).items() if k != "gate"},
        "candidates": {c.name: c.weights_sha256 for c in candidates},
        "target": target_identity(cfg).weights_sha256,
        "dtype": cfg.target.dtype,
        "hardware": hardware(),
        "seed": cfg.seed,
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        return _evaluate(cfg, corpus, candidates, vocabulary, folder, stage)

    return run_stage(cfg, "evaluate", settings, [corpus], produce)


def _evaluate(
    cfg: DictConfig,
    corpus: Artifact,
    candidates: list[Candidate],
    vocabulary: int,
    folder: Path,
    stage: Run,
) -> dict[str, Any]:
    rows = load_corpus(corpus.path)
    target = load_configured_target(cfg)
    drafts = {
        c.name: load_draft(c.folder, dtype=target.dtype, device=target.device) for c in candidates
    }
    drafts = _screen(cfg, target, drafts, rows["validation"], vocabulary)
    evaluation = measure_candidates(
        target,
        drafts,
        _prompts(rows["evaluation"], cfg.evaluate.num_prompts),
        list(cfg.evaluate.num_draft_tokens),
        Sampling(**plain(cfg.evaluate.sampling)),
        max_new_tokens=cfg.evaluate.max_new_tokens,
        eos_token_ids=eos_token_ids(target_folder(cfg)),
        batch_size=cfg.evaluate.batch_size,
        vocabulary_size=vocabulary,
        seed=cfg.seed,
        folder=folder,
        bootstrap=cfg.evaluate.bootstrap,
        margin=cfg.evaluate.margin,
        progress=_progress,
    )
    return _report(evaluation, candidates, target_identity(cfg).parameters, folder, stage)


def _screen(
    cfg: DictConfig,
    target: "PreTrainedModel",
    drafts: "dict[str, PreTrainedModel]",
    held_out: "Dataset",
    vocabulary: int,
) -> "dict[str, PreTrainedModel]":
    """The few to decode for real, by their alpha on held-out rows; all when they are few."""
    most = cfg.evaluate.max_candidates
    if len(drafts) <= most:
        return drafts
    rows = [
        Trajectory(row["id"], list(row["input_ids"]), row["prompt_length"])
        for row in held_out.to_list()
    ]
    bootstrap = Bootstrap(cfg.evaluate.bootstrap, cfg.seed)
    agreements = teacher_forced(target, drafts, rows, vocabulary, bootstrap=bootstrap)
    for name, found in agreements.items():
        log.info("held out: %s alpha %.3f, KL %.3f", name, found.alpha.value, found.kl.value)
    return {name: drafts[name] for name in choose(agreements, list(drafts), most)}


def _prompts(rows: "Dataset", most: int) -> list[Prompt]:
    first = rows.select(range(min(most, len(rows)))).to_list()
    return [Prompt(r["id"], r["domain"], list(r["input_ids"][: r["prompt_length"]])) for r in first]


def _report(
    evaluation: Evaluation,
    candidates: list[Candidate],
    target_parameters: int,
    folder: Path,
    stage: Run,
) -> dict[str, Any]:
    table = candidates_table(evaluation.table, evaluation.champion.arm)
    verdict = evaluation.verdict
    text = f"{as_text(table)}\nverdict: {verdict.decision}. {verdict.reason}\n"
    (folder / TABLE).write_text(text)
    rows = [{"candidate": r.candidate, **dict(numbers(asdict(r)))} for r in evaluation.table]
    stage.log_table("candidates", rows)
    stage.log_folder(folder, "evaluation")
    champion = next(c for c in candidates if c.name == evaluation.champion.candidate)
    return {
        **evaluation.summary(),
        "draft_folder": str(champion.folder),
        "draft_weights_sha256": champion.weights_sha256,
        "parameter_ratio": champion.parameters / target_parameters,
    }


def _progress(done: int, batches: int, what: str) -> None:
    log.info("evaluate: %d of %d batches (%s)", done, batches, what)
