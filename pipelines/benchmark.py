"""Stage `benchmark`: how fast this code is beside others', on this configuration's own models."""

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from transformers.utils import logging as transformers_logging

from distill.artifacts import Artifact, write_json
from distill.errors import UserError
from distill.evaluate.benchmark import Contest, benchmark
from distill.evaluate.tables import as_text, decoding_table
from distill.pipelines import (
    loss_benchmark,
    prepare,
    selection_benchmark,
    training_benchmark,
)
from distill.pipelines.inputs import check_at_least, machine, plain
from distill.pipelines.pair import find_pair, held_out
from distill.pipelines.stage import as_job, run_stage
from distill.tracking.runs import Run

log = logging.getLogger(__name__)
TABLE, RESULTS = training_benchmark.TABLE, training_benchmark.RESULTS
SIZES = ("num_draft_tokens", "batch_sizes", "max_new_tokens", "repetitions")


@as_job
def run(cfg: DictConfig) -> Artifact:
    """`what=decoding`: plain and speculative decoding here and in transformers.

    `what=training`: training here and in TRL.
    `what=loss`: the fused loss beside its matrix products alone.
    `what=selection`: screening and racing beside decoding every candidate.

    Raises:
        UserError: an unknown benchmark, or settings that cannot be measured.
    """
    benchmarks = {
        "decoding": _decoding,
        "training": training_benchmark.training,
        "loss": loss_benchmark.loss,
        "selection": selection_benchmark.selection,
    }
    if cfg.what not in benchmarks:
        raise UserError(f"what={cfg.what}: there is no such benchmark; use {', '.join(benchmarks)}")
    measured = benchmarks[cfg.what](cfg)
    sys.stdout.write((measured.path / TABLE).read_text(encoding="utf-8"))
    sys.stdout.write(f"benchmark: {measured.path / RESULTS}\n")
    return measured


def _decoding(cfg: DictConfig) -> Artifact:
    check_at_least(1, "benchmark", {name: plain(cfg.benchmark)[name] for name in SIZES})
    prompts = held_out(prepare.run(cfg), max(cfg.benchmark.batch_sizes))
    pair = find_pair(cfg)
    settings = {
        "what": cfg.what,
        "benchmark": {name: plain(cfg.benchmark)[name] for name in SIZES},
        "dtype": cfg.target.dtype,
        "draft": pair.draft_sha256,
        "target": pair.target_sha256,
        "prompts": prompts,
        "hardware": machine(cfg),
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        transformers_logging.set_verbosity_error()  # its hints on generation settings, each call
        target, draft = pair.load(cfg, cfg.target.dtype)
        sizes = cfg.benchmark
        contest = Contest(
            target, draft, prompts, pair.vocabulary_size, sizes.max_new_tokens, sizes.repetitions
        )
        lines = []
        for found in benchmark(contest, list(sizes.batch_sizes), list(sizes.num_draft_tokens)):
            log.info("benchmark: batch %d done", found[0].batch_size)
            lines += found
        (folder / TABLE).write_text(as_text(decoding_table(lines), 190), encoding="utf-8")
        rows = [line.numbers() for line in lines]
        runs = [asdict(line) for line in lines]
        write_json(folder / RESULTS, {"lines": rows, "runs": runs, **settings})
        stage.log_table("benchmark", rows)
        stage.log_folder(folder, "benchmark")
        efficiency = {f"b{x.batch_size}_k{x.num_draft_tokens}": x.efficiency for x in lines}
        return {"engine_efficiency": efficiency}

    return run_stage(cfg, "benchmark", settings, [], produce)
