"""Stage `generate`: the target answers the prompts that have no text of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.content import content
from distill.data.answers import PIECES, answer_prompts
from distill.data.corpus import load_corpus
from distill.pipelines.job import Job
from distill.pipelines.prepare import Corpus
from distill.tracking.runs import Run


def run(job: Job, corpus: Corpus) -> Corpus:
    """The corpus to train on: every row of train and validation has tokens to learn from."""
    if not (job.config.generate.enabled and corpus.unanswered):
        return corpus
    target, vocabulary = job.target, job.vocabulary_size
    settings = {
        "generate": content(job.config.generate, "generate"),
        "target": target.identity.sha256,
        "dtype": job.config.target.dtype,
        "eos_token_ids": target.eos_token_ids,
        "vocabulary_size": vocabulary,
        "seed": job.config.seed,
    }

    def produce(folder: Path, _: Run) -> Mapping[str, Any]:
        return answer_prompts(
            target.load(),
            load_corpus(corpus.path),
            job.config.generate,
            target.eos_token_ids,
            folder,
            vocabulary_size=vocabulary,
            seed=job.config.seed,
        )

    artifact = job.make("generate", settings, [corpus.artifact], produce, pieces=PIECES)
    return Corpus(artifact, unanswered=0)
