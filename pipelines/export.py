"""Stage `export`: the champion as a folder that servers load as it is."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.pipelines import evaluate
from distill.pipelines.inputs import plain, target_folder
from distill.pipelines.register import lineage
from distill.pipelines.stage import as_job, run_stage
from distill.serving.export import export_draft
from distill.tracking.runs import Run
from distill.versions import hardware


@as_job
def run(cfg: DictConfig) -> Artifact:
    """`<artifact>/<name>-draft`: weights, tokenizer, template, generation_config and model card."""
    measured = evaluate.run(cfg)
    settings = {"export": plain(cfg.export), "name": cfg.name, "target": cfg.target.id}

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        exported = export_draft(
            Path(measured.counts["draft_folder"]),
            folder / f"{cfg.name}-draft",
            target_id=cfg.target.id,
            target_folder=target_folder(cfg),
            numbers=measured.counts,
            measurement={**plain(cfg.evaluate), "hardware": hardware()},
            lineage=lineage(cfg, measured),
            dtype=cfg.export.dtype,
        )
        stage.log_folder(exported, "export")
        return {"folder": exported.name}

    return run_stage(cfg, "export", settings, [measured], produce)
