"""`pipeline=benchmark what=loss`: each divergence's fused loss beside its matrix products alone."""

import logging
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from distill.artifacts import Artifact, write_json
from distill.evaluate.products import LossLine, Shapes, time_loss
from distill.evaluate.tables import as_text, loss_table
from distill.losses.chunked import chunk_tokens
from distill.losses.compiler import worth_compiling
from distill.losses.mixture import BY_NAME
from distill.models.folder import text_setting
from distill.models.target import pick_dtype
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines.inputs import check_at_least, draft_folder, machine, plain, target_folder
from distill.pipelines.plan import planned
from distill.pipelines.stage import run_stage
from distill.pipelines.training_benchmark import RESULTS, TABLE
from distill.process import return_freed_memory
from distill.tracking.runs import Run

log = logging.getLogger(__name__)


def loss(cfg: DictConfig) -> Artifact:
    """Time the loss of one micro-batch on CPU, in `target.dtype`; if that is `auto`, in fp32 too.

    Heads and states are random; no model is loaded.
    """
    asked = cfg.benchmark
    check_at_least(1, "benchmark", {"repetitions": asked.repetitions})
    heads = [plain(one) for one in asked.heads] or [_own_heads(cfg)]
    for one in heads:
        check_at_least(1, "benchmark.heads", one)
    settings = {
        "what": "loss",
        "heads": heads,
        "repetitions": asked.repetitions,
        "dtype": cfg.target.dtype,
        "tokens": cfg.trainer.tokens_per_batch,
        "chunk_size": cfg.objective.chunk_size,
        "compiled": cfg.objective.compiled,
        "threads": torch.get_num_threads(),
        "hardware": machine(cfg),
    }

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        lines = [line for one in heads for line in _lines(cfg, one)]
        (folder / TABLE).write_text(as_text(loss_table(lines), 130), encoding="utf-8")
        found = [
            {"divergence": line.divergence, "compute": line.compute, "shares": line.times.shares}
            | {"ids": line.shapes.vocabulary_size, "seconds": line.times.loss}
            | {"undisturbed_share": line.times.undisturbed_share}
            for line in lines
        ]
        write_json(folder / RESULTS, {"lines": found, **settings})
        stage.log_folder(folder, "benchmark")
        return {}

    return run_stage(cfg, "benchmark", settings, [], produce)


def _lines(cfg: DictConfig, heads: dict[str, int]) -> list[LossLine]:
    """Every divergence in every dtype asked for."""
    asked, cpu = cfg.objective.compiled, torch.device("cpu")
    compiled = worth_compiling(cpu, heads["vocabulary_size"]) if asked is None else asked
    lines = []
    given = cfg.target.dtype
    names = {"float32", given} if given == "auto" else {given}
    for dtype in sorted({pick_dtype(name, cpu) for name in names}, key=str):
        shapes = Shapes(
            tokens=cfg.trainer.tokens_per_batch,
            chunk_size=chunk_tokens(heads["width"], cfg.objective.chunk_size),
            compute=dtype,
            **heads,
        )
        for name, divergence in BY_NAME.items():
            times = time_loss(shapes, divergence, compiled, cfg.benchmark.repetitions)
            lines.append(LossLine(name, shapes, times))
            return_freed_memory()
            log.info("benchmark: %s in %s done", name, lines[-1].compute)
    return lines


def _own_heads(cfg: DictConfig) -> dict[str, int]:
    """Of this configuration's pair, from configs and tokenizers alone."""
    target, draft = target_folder(cfg), draft_folder(cfg)
    return {
        "vocabulary_size": shared_vocabulary(target, draft).size,
        "width": planned(cfg, target, draft).config.hidden_size,
        "target_width": text_setting(target, "hidden_size"),
    }
