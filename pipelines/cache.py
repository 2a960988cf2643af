"""Stage `cache`: the target's signal for every row to learn from, asked for once."""

from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig

from distill.artifacts import Artifact
from distill.data.corpus import load_corpus
from distill.errors import UserError
from distill.models.vocabulary import shared_vocabulary
from distill.pipelines import generate
from distill.pipelines.inputs import (
    draft_folder,
    load_configured_target,
    plain,
    target_folder,
    target_identity,
)
from distill.pipelines.stage import as_job, run_stage
from distill.teacher.cache import cache_signals
from distill.teacher.codecs import Live
from distill.teacher.live import LiveTeacher
from distill.tracking.runs import Run


@as_job
def run(cfg: DictConfig) -> Artifact:
    """Shards of `signal` for train, hidden states for validation, and the target's head.

    Raises:
        UserError: a live signal, or a disk too small.
    """
    codec = hydra.utils.instantiate(cfg.signal)
    if isinstance(codec, Live):
        raise UserError("signal=live keeps nothing: give signal=hidden, top_k or sampled")
    corpus = generate.run(cfg)
    target = target_identity(cfg)
    vocabulary = shared_vocabulary(target_folder(cfg), draft_folder(cfg))
    settings = {
        "signal": plain(cfg.signal),
        "target": target.sha256,
        "tokenizer": target.tokenizer_sha256,
        "template": target.template_sha256,
        "dtype": cfg.target.dtype,
        "vocabulary_size": vocabulary.size,
        "seed": cfg.seed,
    }

    def produce(folder: Path, _: Run) -> dict[str, Any]:
        return cache_signals(
            LiveTeacher(
                load_configured_target(cfg),
                vocabulary.size,
                compiled=cfg.trainer.compile_target,
            ),
            load_corpus(corpus.path),
            codec,
            folder,
            shard_tokens=cfg.signal.shard_tokens,
            tokens_per_batch=cfg.trainer.tokens_per_batch,
            seed=cfg.seed,
        )

    return run_stage(cfg, "cache", settings, [corpus], produce)
