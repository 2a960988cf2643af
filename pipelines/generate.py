"""Stage `generate`: the target answers the prompts that have no text of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distill.content import content
from distill.data.answers import ANSWERED_SPLITS, PIECES, answer_prompts
from distill.data.corpus import load_corpus, row_lengths, unanswered
from distill.errors import UserError
from distill.pipelines.job import Job
from distill.pipelines.prepare import Corpus
from distill.tracking.runs import Run


def run(job: Job, corpus: Corpus) -> Corpus:
    """The corpus to train on: every row of train and validation has tokens to learn from."""
    if not (job.config.generate.enabled and corpus.unanswered):
        return corpus
    _check_room(job, corpus)
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


def _check_room(job: Job, corpus: Corpus) -> None:
    """Refuse answers that training could not take, before the target writes them for hours.

    Raises:
        UserError: a prompt with an answer of the full length does not fit a micro-batch.
    """
    trainer, new = job.config.trainer, job.config.generate.max_new_tokens
    limit = min(trainer.tokens_per_batch, trainer.tokens_per_step)
    if job.config.pipeline == "generate" or not (job.trains or job.config.pipeline == "train"):
        return
    splits = load_corpus(corpus.path)
    prompts = [row_lengths(splits[one])[unanswered(splits[one])] for one in ANSWERED_SPLITS]
    prompt = max(int(lengths.max(initial=0)) for lengths in prompts)
    if min(prompt + new, job.target.context_length) > limit:
        raise UserError(
            f"a prompt has {prompt} tokens and its answer may have generate.max_new_tokens={new}, "
            f"but a micro-batch holds {limit}: raise trainer.tokens_per_batch and "
            "trainer.tokens_per_step, or lower data.max_length or generate.max_new_tokens"
        )
