"""Stage `export`: the champion as a folder that servers load as it is, proven to change nothing."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distill.artifacts import Artifact
from distill.content import content, plain
from distill.data.corpus import load_corpus
from distill.pipelines.job import Job
from distill.pipelines.judge import Judged
from distill.pipelines.prepare import Corpus
from distill.serving.export import export_draft, serving_of
from distill.serving.transformers import ExportError
from distill.tracking.runs import Run

PROOF_PROMPTS = 2


@dataclass(frozen=True)
class Exported:
    """An exported draft. folder: what a server loads."""

    artifact: Artifact
    folder: Path


def run(job: Job, corpus: Corpus, judged: Judged) -> Exported:
    """`<artifact>/<name>-draft`: weights, tokenizer, template, generation_config and model card.

    Raises:
        ExportError: greedy decoding with the exported draft differs from the target's own.
    """
    config, target = job.config, job.target
    settings = {
        "export": content(config.export, "export"),
        "name": config.name,
        "target": target.name,
    }

    def produce(folder: Path, stage: Run) -> Mapping[str, Any]:
        exported = export_draft(
            judged.draft_folder,
            folder / f"{config.name}-draft",
            target_id=target.name,
            target_folder=target.folder,
            numbers=judged.summary,
            measurement=_method(job, judged),
            lineage=judged.lineage,
            dtype=config.export.dtype,
        )
        proof = serving_of(exported).prove(
            exported,
            target=target.load(),
            eos_token_ids=target.eos_token_ids,
            prompts=_prompts(corpus),
        )
        if proof.unexplained:
            raise ExportError(
                f"{exported}: greedy decoding with this draft changes the output of "
                f"{proof.unexplained} prompts, where no two tokens are nearly as likely"
            )
        stage.log_folder(exported, "export")
        return {"folder": exported.name, "proof": asdict(proof)}

    artifact = job.make("export", settings, [judged.artifact], produce)
    return Exported(artifact, artifact.path / artifact.counts["folder"])


def _method(job: Job, judged: Judged) -> dict[str, Any]:
    """How the numbers of the card were measured; no local paths."""
    asked = job.config.evaluate
    return {
        "prompts": judged.outcome.turns,
        "max_new_tokens": asked.max_new_tokens,
        "batch_size": asked.batch_sizes[0],
        "sampling": plain(asked.samplings[0]),
        "hardware": job.machine,
    }


def _prompts(corpus: Corpus) -> list[list[int]]:
    rows = load_corpus(corpus.path)["evaluation"]
    first = rows.select(range(min(PROOF_PROMPTS, len(rows)))).to_list()
    return [list(row["input_ids"][: row["prompt_length"]]) for row in first]
