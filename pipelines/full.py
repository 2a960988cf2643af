"""The whole road: each stage asks for what it reads, so the last two pull all the others."""

import sys
import time
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from distill.artifacts import write_json
from distill.pipelines import evaluate, export, register, train
from distill.pipelines.candidates import trains
from distill.pipelines.stage import as_job, current_job
from distill.tracking.runs import numbers

SUMMARY = "summary.json"


@as_job
def run(cfg: DictConfig) -> dict[str, Any]:
    """Distil, evaluate, register, export; ends with table, verdict and `summary: <path>`."""
    started = time.monotonic()
    measured = evaluate.run(cfg)
    champion = register.run(cfg)
    exported = export.run(cfg)
    summary = {
        "target": cfg.target.id,
        **{k: v for k, v in measured.counts.items() if k != "draft_folder"},
        "model_uri": champion.version_uri,
        "export_path": str(exported.path / exported.counts["folder"]),
        "wall_seconds": round(time.monotonic() - started, 1),
    }
    if trains(cfg):
        counts = train.run(cfg).counts
        summary["train_tokens"] = counts["train_tokens"]
        summary["train_tokens_per_second"] = counts["tokens_per_second"]
    path = Path(HydraConfig.get().runtime.output_dir) / SUMMARY
    write_json(path, summary)
    run = current_job().run
    run.log_metrics(dict(numbers(summary)))
    run.log_folder(path.parent, "summary")
    sys.stdout.write(f"summary: {path}\n")
    return summary
