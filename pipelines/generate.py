"""Stage `generate`: the target answers the prompts that have no text of their own."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.answers import answer_prompts
from distill.data.corpus import load_corpus
from distill.models.target import eos_token_ids
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import prepare
from distill.pipelines.inputs import (
    draft_folder,
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.tracking.runs import Run


@as_job
def run(cfg: DictConfig) -> Artifact:
    """The corpus to train on: every row of train and validation has tokens to learn from."""
    corpus = prepare.run(cfg)
    if not (cfg.generate.enabled and corpus.counts["unanswered"]):
        return corpus
    eos = eos_token_ids(target_folder(cfg))
    vocabulary = shared_vocabulary(target_folder(cfg), draft_folder(cfg)).size
    settings = {
        "generate": plain(cfg.generate),
        "target": target_identity(cfg).sha256,
        "dtype": cfg.target.dtype,
        "eos_token_ids": eos,
        "vocabulary_size": vocabulary,
        "seed": cfg.seed,
    }

    def produce(folder: Path, _: Run) -> dict[str, Any]:
        return answer_prompts(
            load_configured_target(cfg),
            load_corpus(corpus.path),
            cfg.generate,
            eos,
            folder,
            vocabulary_size=vocabulary,
            seed=cfg.seed,
        )

    return run_stage(cfg, "generate", settings, [corpus], produce)
