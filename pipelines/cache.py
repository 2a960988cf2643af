"""Stage `cache`: the target's signal for every row to learn from, asked for once."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.artifacts import Artifact
from distill.content import plain
from distill.data.corpus import load_corpus
from distill.pipelines.job import Job
from distill.pipelines.prepare import Corpus
from distill.teacher.cache import cache_signals
from distill.teacher.live import LiveTeacher
from distill.teacher.shards import PIECES
from distill.tracking.runs import Run


@dataclass(frozen=True)
class CachedSignal:
    """Shards of the target's signal, with the target's head beside them."""

    artifact: Artifact

    @property
    def path(self) -> Path:
        return self.artifact.path


def run(job: Job, corpus: Corpus) -> CachedSignal:
    """Shards of `signal` for train, hidden states for validation, and the target's head.

    Raises:
        UserError: a disk too small.
    """
    identity, vocabulary = job.target.identity, job.vocabulary_size
    settings = {
        "signal": plain(job.config.signal),
        "target": identity.sha256,
        "tokenizer": identity.tokenizer_sha256,
        "template": identity.template_sha256,
        "dtype": job.config.target.dtype,
        "vocabulary_size": vocabulary,
        "seed": job.config.seed,
    }
    if job.reads:  # what a head reads is kept beside the signal
        settings["features"] = list(job.reads)

    def produce(folder: Path, _: Run) -> Mapping[str, Any]:
        trainer = job.config.trainer
        return cache_signals(
            LiveTeacher(
                job.target.load(),
                vocabulary,
                compiled=trainer.compile_target,
                reads=job.reads,
            ),
            load_corpus(corpus.path),
            job.codec,
            folder,
            shard_tokens=job.config.signal["shard_tokens"],
            tokens_per_batch=trainer.tokens_per_batch,
            seed=job.config.seed,
        )

    return CachedSignal(job.make("cache", settings, [corpus.artifact], produce, pieces=PIECES))
