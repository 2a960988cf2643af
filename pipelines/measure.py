"""Stage `measure`: every candidate decodes. Rows only: nothing is pooled or judged yet.

What the rows do not depend on (`evaluate.margin`, `evaluate.floors`) is no part of its fingerprint,
so that another bar finds the same rows again.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.artifacts import Artifact
from distill.content import content
from distill.data.corpus import load_corpus
from distill.evaluate.candidates import (
    Candidate,
    HeldOutScores,
    finite,
    make_candidates,
    warn_of_other_flags,
)
from distill.evaluate.measure import Grid, measure_candidates
from distill.evaluate.prompts import (
    PromptFile,
    Unrolled,
    all_turns,
    choose_conversations,
    held_out_conversations,
)
from distill.evaluate.records import MEASUREMENTS, write_rows
from distill.evaluate.screening import (
    Screening,
    Trajectory,
    held_out_scores,
    reads_rows,
    screen,
)
from distill.models.code import auto_tokenizer
from distill.pipelines.job import Job
from distill.pipelines.prepare import Corpus
from distill.pipelines.train import Training
from distill.ranks import is_rank_zero
from distill.shards import once, working
from distill.tracking.runs import Run

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WORK = "work"
"""What ranks and a restart share: unfinished until the stage is."""


@dataclass(frozen=True)
class Measured:
    """Rows of all candidates, and what is known of these.

    corpus: the one that was read. grid: what was measured. prompts: how many were decoded, by
    kind. held_out: teacher-forced scores by candidate.
    """

    artifact: Artifact
    corpus: Corpus
    candidates: list[Candidate]
    grid: Grid
    prompts: Mapping[str, Any]
    held_out: Mapping[str, HeldOutScores]


def run(job: Job, corpus: Corpus, answered: Corpus | None, training: Training | None) -> Measured:
    """`measurements.parquet`. All ranks take part.

    answered: where rows with a text are needed, the corpus that has them.

    Raises:
        UserError: nothing to measure, or a candidate of another tokenizer.
    """
    candidates = (
        _named(job)
        if training is None
        else make_candidates(training.candidates, job.draft_identity)
    )
    warn_of_other_flags(candidates, job.target.identity.template_flags)
    grid = _grid(job, min(job.shared_with(one.folder) for one in candidates))
    config, read = job.config, answered or corpus
    settings = {
        "evaluate": content(config.evaluate, "measure"),
        "prompts": _digest(config.evaluate.prompts),
        "candidates": [[one.name, one.sha256] for one in candidates],
        "target": job.target.identity.sha256,
        "dtype": config.target.dtype,
        "eos_token_ids": job.target.eos_token_ids,
        "hardware": job.machine,
        "seed": config.seed,
    }

    def produce(folder: Path, _: Run) -> Mapping[str, Any]:
        with working(folder / WORK):
            return _decode(job, candidates, grid, corpus, read, folder)

    artifact = job.make(
        "measure", settings, [read.artifact], produce, collective=True, verb="evaluate"
    )
    scores = artifact.counts["held_out"]
    return Measured(
        artifact,
        read,
        candidates,
        grid,
        artifact.counts["prompts"],
        {name: HeldOutScores(**found) for name, found in scores.items()},
    )


def reads_answers(job: Job) -> bool:
    """Whether rows with a text are needed: to train on, or to screen the candidates."""
    return job.trains or reads_rows(
        _named(job), job.config.evaluate.max_candidates, job.config.evaluate.samplings[0]
    )


def _named(job: Job) -> list[Candidate]:
    """The drafts that the configuration names, or the one that is ready."""
    folders = job.named_drafts
    if not job.config.evaluate.candidates and job.draft_folder is not None:
        folders = [job.draft_folder]
    return make_candidates(folders, job.draft_identity)


def _grid(job: Job, vocabulary_size: int) -> Grid:
    asked = job.config.evaluate
    return Grid(
        num_draft_tokens=asked.num_draft_tokens,
        samplings=asked.samplings,
        batch_sizes=asked.batch_sizes,
        max_new_tokens=asked.max_new_tokens,
        eos_token_ids=job.target.eos_token_ids,
        vocabulary_size=vocabulary_size,
        seed=job.config.seed,
        context_edges=asked.context_edges,
        confidence_threshold=asked.confidence_threshold,
        prompt_lookup=asked.prompt_lookup,
    )


def _decode(
    job: Job,
    candidates: Sequence[Candidate],
    grid: Grid,
    corpus: Corpus,
    answered: Corpus,
    folder: Path,
) -> dict[str, Any]:
    asked, work, context = job.config.evaluate, folder / WORK, job.target.context_length
    tokenizer = auto_tokenizer(job.target.folder)
    found = (
        held_out_conversations(corpus.path)
        if asked.prompts is None
        else PromptFile.read(Path(asked.prompts).expanduser()).conversations(
            tokenizer, job.config.data, job.config.target
        )
    )
    conversations, too_long = choose_conversations(found, asked, context)
    candidates = finite(candidates)
    target = job.target.load()
    chosen = _screen(job, candidates, target, answered, grid.vocabulary_size, work)
    drafts = {
        one.name: job.load_draft(one.folder, target)
        for one in candidates
        if one.name in chosen.names
    }
    turns = Unrolled.from_json(
        once(
            work / "prompts.json",
            lambda: all_turns(
                target,
                tokenizer,
                conversations,
                grid.answering_load(),
                context=context,
                chat_template_kwargs=job.config.target.chat_template_kwargs,
            ).as_json(),
        )
    )
    rows = measure_candidates(target, drafts, turns.prompts, grid, work)
    if is_rank_zero():
        write_rows(folder / MEASUREMENTS, rows)
    return {
        "prompts": turns.tally(conversations, too_long),
        "held_out": {name: asdict(one) for name, one in chosen.scores.items()},
    }


def _screen(
    job: Job,
    candidates: Sequence[Candidate],
    target: "PreTrainedModel",
    answered: Corpus,
    vocabulary_size: int,
    work: Path,
) -> Screening:
    """Which candidates are decoded for real, by cheap numbers of the same held-out rows."""
    asked = job.config.evaluate

    def read() -> dict[str, HeldOutScores]:
        rows = [
            Trajectory(row["id"], list(row["input_ids"]), row["prompt_length"])
            for row in load_corpus(answered.path)["validation"].to_list()
        ]
        drafts = {one.name: partial(job.load_draft, one.folder, target) for one in candidates}
        found = once(
            work / "held_out.json",
            lambda: {
                name: asdict(one)
                for name, one in held_out_scores(
                    target, drafts, rows, vocabulary_size, _temperature(job)
                ).items()
            },
        )
        return {name: HeldOutScores(**one) for name, one in found.items()}

    return screen(candidates, asked.max_candidates, asked.samplings[0], read)


def _temperature(job: Job) -> float:
    """The first load's; 1 if that is greedy, where alpha would count equal argmaxes only."""
    first = job.config.evaluate.samplings[0]
    return 1.0 if first.greedy else first.temperature


def _digest(path: str | None) -> str | None:
    return path and hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
