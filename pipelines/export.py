"""Stage `export`: the champion as a folder that servers load as it is, proven to change nothing."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.evaluate import outcome
from distill.pipelines import evaluate, prepare
from distill.pipelines.inputs import machine, plain, target_folder, target_name
from distill.pipelines.lineage import lineage
from distill.pipelines.stage import as_job, run_stage
from distill.serving.export import export_draft
from distill.serving.transformers import ExportError, prove
from distill.tracking.runs import Run

PROOF_PROMPTS = 2


@as_job
def run(cfg: DictConfig) -> Artifact:
    """`<artifact>/<name>-draft`: weights, tokenizer, template, generation_config and model card.

    Raises:
        ExportError: greedy decoding with the exported draft differs from the target's own.
    """
    measured = evaluate.measure(cfg)
    served = target_name(cfg)
    settings = {"export": plain(cfg.export), "name": cfg.name, "target": served}

    def produce(folder: Path, stage: Run) -> dict[str, Any]:
        exported = export_draft(
            Path(measured.counts["draft_folder"]),
            folder / f"{cfg.name}-draft",
            target_id=served,
            target_folder=target_folder(cfg),
            numbers=measured.counts,
            measurement=_method(cfg, measured),
            lineage=lineage(cfg, measured),
            dtype=cfg.export.dtype,
        )
        proof = prove(exported, target=target_folder(cfg), prompts=_prompts(cfg))
        if not proof.identical:
            raise ExportError(f"{exported}: greedy decoding with this draft changes the output")
        stage.log_folder(exported, "export")
        return {"folder": exported.name, "proof": asdict(proof)}

    return run_stage(cfg, "export", settings, [measured], produce)


def _method(cfg: DictConfig, measured: Artifact) -> dict[str, Any]:
    """How the numbers of the card were measured; no local paths."""
    asked = cfg.evaluate
    found = json.loads((measured.path / outcome.FILE).read_text(encoding="utf-8"))
    return {
        "prompts": found["prompts"]["turns"],
        "max_new_tokens": asked.max_new_tokens,
        "batch_size": asked.batch_sizes[0],
        "sampling": plain(asked.samplings[0]),
        "hardware": machine(cfg),
    }


def _prompts(cfg: DictConfig) -> list[list[int]]:
    rows = load_corpus(prepare.run(cfg).path)["evaluation"]
    first = rows.select(range(min(PROOF_PROMPTS, len(rows)))).to_list()
    return [list(row["input_ids"][: row["prompt_length"]]) for row in first]
