"""Stage `prepare`: rows of the source, tokenised once, split three ways.

Where the data has no prompts of its own, the target writes them first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.artifacts import Artifact
from distill.content import content
from distill.data.corpus import build_corpus
from distill.data.self_prompt import PIECES, PROMPTS, write_prompts
from distill.data.sources import SelfPromptedSource
from distill.data.sources.self_prompted import self_prompted
from distill.data.user_turn import UserTurn, user_turn
from distill.models.code import auto_tokenizer
from distill.pipelines.job import Job
from distill.tracking.runs import Run


@dataclass(frozen=True)
class Corpus:
    """Tokenised rows in three splits. unanswered: rows to learn from that are a prompt only."""

    artifact: Artifact
    unanswered: int

    @property
    def path(self) -> Path:
        return self.artifact.path


def run(job: Job) -> Corpus:
    """The corpus: `id, domain, input_ids, prompt_length` in train, validation and evaluation.

    Raises:
        UserError: the source cannot give a usable row (found out before anything is loaded).
    """
    written = [_self_prompted(job, source) for source in self_prompted(job.source)]
    target, config = job.target, job.config
    settings = {
        "data": content(config.data, "prepare"),
        "source": job.source.fingerprint(),
        "tokenizer": target.identity.tokenizer_sha256,
        "template": target.identity.template_sha256,
        "system_prompt": config.target.system_prompt,
        "eos_token_ids": target.eos_token_ids,
        "seed": config.seed,
    }

    def produce(folder: Path, _: Run) -> Mapping[str, Any]:
        tokenizer = auto_tokenizer(target.folder)
        return build_corpus(
            job.source,
            tokenizer,
            config.data,
            config.target,
            folder,
            eos_token_ids=target.eos_token_ids,
            seed=config.seed,
        )

    artifact = job.make("prepare", settings, written, produce)
    return Corpus(artifact, artifact.counts["unanswered"])


def open_user_turn(job: Job) -> UserTurn:
    """What the target's template puts around a user's turn; UserError where it has none."""
    tokenizer = auto_tokenizer(job.target.folder)
    return user_turn(tokenizer, job.config.target, job.target.eos_token_ids)


def _self_prompted(job: Job, source: SelfPromptedSource) -> Artifact:
    """The prompts that the target writes for one source, which then reads them."""
    target = job.target
    settings = {
        "source": source.writing(),
        "target": target.identity.sha256,
        "tokenizer": target.identity.tokenizer_sha256,
        "template": target.identity.template_sha256,
        "system_prompt": job.config.target.system_prompt,
        "eos_token_ids": target.eos_token_ids,
        "dtype": job.config.target.dtype,
        "seed": job.config.seed,
    }

    def produce(folder: Path, _: Run) -> Mapping[str, Any]:
        return write_prompts(
            target.load(),
            open_user_turn(job),
            source,
            folder,
            vocabulary_size=job.shared_with(None),
            seed=job.config.seed,
        )

    artifact = job.make("self_prompt", settings, [], produce, pieces=PIECES, verb="prepare")
    source.read(artifact.path / PROMPTS)
    return artifact
