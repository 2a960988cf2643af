"""Real decoding is timed: all arms decode the same prompts at every load, A B … B A, resumable."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from transformers import PreTrainedModel

from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.evaluate.batches import Unit, batches, units
from distill.evaluate.interleave import there_and_back
from distill.evaluate.load import Load, stream
from distill.evaluate.records import (
    LOOKUP,
    PLAIN,
    PLAIN_ARM,
    Arm,
    Measurement,
    Prompt,
    bucket_of,
    read_rows,
    write_rows,
)
from distill.evaluate.statistics import merge_rows
from distill.progress import Progress
from distill.shards import once, share
from distill.speculative.decode import Output, decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import Drafter
from distill.speculative.lookup import PromptLookup
from distill.speculative.sampling import Sampling

REPETITIONS = 2
"""Each batch is decoded by all arms in one order and then in the reverse one."""


@dataclass(frozen=True)
class Grid:
    """What is measured: every k at every load.

    context_edges: of the context-length buckets. confidence_threshold: k is the most that is
    drafted; a round ends behind a less confident token. prompt_lookup: whether the untrained
    baseline is measured too, at the largest k.
    """

    num_draft_tokens: Sequence[int]
    samplings: Sequence[Sampling]
    batch_sizes: Sequence[int]
    max_new_tokens: int
    eos_token_ids: Sequence[int]
    vocabulary_size: int
    seed: int
    context_edges: Sequence[int] = ()
    confidence_threshold: float = 0.0
    prompt_lookup: bool = False

    def loads(self) -> list[Load]:
        return [
            Load(
                sampling,
                self.max_new_tokens,
                tuple(self.eos_token_ids),
                batch_size,
                self.vocabulary_size,
                self.seed,
                tuple(self.context_edges),
                self.confidence_threshold,
            )
            for sampling, batch_size in product(self.samplings, self.batch_sizes)
        ]

    def answering_load(self) -> Load:
        """The load at which the target answers turns: the first sampling, the largest batch."""
        return replace(self.loads()[0], batch_size=max(self.batch_sizes))


@dataclass(frozen=True)
class Bench:
    """The models that decode: the target, and a drafter by candidate name."""

    target: PreTrainedModel
    drafters: dict[str, Drafter]


def measure_candidates(
    target: PreTrainedModel,
    candidates: Mapping[str, PreTrainedModel | Drafter],
    prompts: Sequence[Prompt],
    grid: Grid,
    folder: Path,
) -> list[Measurement]:
    """Decode `prompts` with the target alone and with every candidate at every k and load.

    A candidate is a draft model or a drafter. Rows are kept under `folder` as they come; the same
    call goes on after a kill, and ranks share the work. UserError for an empty list of prompts,
    candidates, k or loads, a k below 1, or a prompt that comes twice.

    Returns:
        The rows of all loads, one load after the other.
    """
    _check(candidates, prompts, grid)
    bench = Bench(target, {name: _drafter(one, target) for name, one in candidates.items()})
    arms = [Arm(name, k) for name in candidates for k in grid.num_draft_tokens]
    if grid.prompt_lookup:
        bench.drafters[LOOKUP] = PromptLookup()
        arms.append(Arm(LOOKUP, max(grid.num_draft_tokens)))
    found: list[Measurement] = []
    total = sum(
        _decodings(unit, len(arms))
        for load in grid.loads()
        for unit in units(prompts, load.batch_size, load.seed)
    )
    with Progress("decoding", total, first="every draft decodes a little, untimed") as progress:
        for number, load in enumerate(grid.loads()):
            found += measure(bench, prompts, arms, load, folder / f"load-{number:02d}", progress)
    return found


def measure(
    bench: Bench,
    prompts: Sequence[Prompt],
    arms: Sequence[Arm],
    load: Load,
    folder: Path,
    progress: Progress,
) -> list[Measurement]:
    """Rows of plain decoding and of all `arms` over all prompts, at one load.

    A unit is written whole, so a kill loses at most one. Ranks share the units. Call it again with
    the same folder to go on; another setting in that folder is a UserError. progress: counts
    decodings.
    """
    work = units(prompts, load.batch_size, load.seed)
    paths = [folder / f"batch-{index:05d}.parquet" for index in range(len(work))]
    _claim(folder, prompts, load)
    every = [PLAIN_ARM, *arms]
    warmed: set[tuple[Arm, int]] = set()
    before = progress.done

    def count() -> None:
        whole = [unit for unit, path in zip(work, paths, strict=True) if path.exists()]
        progress.reach(before + sum(_decodings(unit, len(arms)) for unit in whole))

    def make(index: int) -> None:
        unit = work[index]
        _warm_up(bench, every, unit, load, warmed)
        count()
        write_rows(paths[index], _measure_unit(bench, _rotated(every, index), unit, load, progress))

    share(paths, make)
    count()
    return merge_rows(map(read_rows, paths), lambda row: row.key)


def _drafter(candidate: PreTrainedModel | Drafter, target: PreTrainedModel) -> Drafter:
    if isinstance(candidate, PreTrainedModel):
        return drafter_for(candidate, target)
    return candidate


def _check(
    candidates: Mapping[str, PreTrainedModel | Drafter], prompts: Sequence[Prompt], grid: Grid
) -> None:
    if not candidates:
        raise UserError("no candidate to measure: name drafts in evaluate.candidates or train one")
    if taken := {PLAIN, LOOKUP} & {*candidates}:
        raise UserError(f"{min(taken)!r} is the name of a baseline: rename that candidate")
    if not prompts:
        raise UserError("no prompts are left to decode: widen the filter or the held-out part")
    if not grid.num_draft_tokens or min(grid.num_draft_tokens) < 1:
        raise UserError(
            f"evaluate.num_draft_tokens is {list(grid.num_draft_tokens)}: "
            "give at least one k, each at least 1"
        )
    if not grid.samplings or not grid.batch_sizes:
        raise UserError("no load to measure: give evaluate.samplings and evaluate.batch_sizes")
    ids = [(prompt.id, prompt.turn) for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise UserError(f"prompt id {twice[0]!r} comes twice: prompts need ids of their own")


def _rotated(arms: list[Arm], index: int) -> list[Arm]:
    """The arms, begun with another one in each unit: no arm owns the ends of A B … B A."""
    start = index % len(arms)
    return arms[start:] + arms[:start]


def _decodings(unit: Unit, arms: int) -> int:
    """How often a unit's batches are decoded by so many arms and by the target alone."""
    return len(batches(unit)) * (arms + 1) * REPETITIONS


def _measure_unit(
    bench: Bench, arms: list[Arm], unit: Unit, load: Load, progress: Progress
) -> list[Measurement]:
    rows: list[Measurement] = []
    for batch in batches(unit):
        for repetition, arm in there_and_back(arms, REPETITIONS):
            out = _decode(bench, arm, batch, load, load.max_new_tokens, repetition)
            rows += _rows(out, arm, batch, load, repetition, unit[0].id)
            progress.advance(1)
    return rows


def _warm_up(
    bench: Bench, arms: list[Arm], unit: Unit, load: Load, warmed: set[tuple[Arm, int]]
) -> None:
    """Decode a little, once per arm and batch shape: compilation, graph capture, first touches."""
    for batch in batches(unit):
        for arm in arms:
            if (arm, len(batch)) not in warmed:
                most = min(load.max_new_tokens, 4 * (arm.num_draft_tokens + 1))
                _decode(bench, arm, batch, load, most)
                warmed.add((arm, len(batch)))


def _decode(
    bench: Bench, arm: Arm, batch: list[Prompt], load: Load, most: int, repetition: int = 0
) -> Output:
    return decode(
        bench.target,
        [prompt.tokens for prompt in batch],
        drafter=None if arm == PLAIN_ARM else bench.drafters[arm.candidate],
        num_draft_tokens=load.draft_length(arm.num_draft_tokens),
        sampling=load.sampling,
        max_new_tokens=most,
        eos_token_ids=load.eos_token_ids,
        seed=load.seed + repetition,
        row_ids=[stream(prompt) for prompt in batch],
        vocabulary_size=load.vocabulary_size,
    )


def _rows(
    out: Output, arm: Arm, batch: list[Prompt], load: Load, repetition: int, unit: str
) -> list[Measurement]:
    share = 1 / len(batch)
    return [
        Measurement(
            prompt_id=prompt.id,
            turn=prompt.turn,
            domain=prompt.domain,
            bucket=bucket_of(len(prompt.tokens), load.context_edges),
            candidate=arm.candidate,
            num_draft_tokens=arm.num_draft_tokens,
            batch_size=load.batch_size,
            sampling=load.sampling_name,
            repetition=repetition,
            unit=unit,
            prompt_tokens=len(prompt.tokens),
            committed=record.committed,
            finish_reason=record.finish_reason,
            prefill_seconds=out.timing.prefill_seconds * share,
            decode_seconds=out.timing.decode_seconds * share,
            draft_seconds=out.timing.draft_seconds * share,
            verify_seconds=out.timing.verify_seconds * share,
            draft_steps=out.timing.draft_steps * share,
            verify_steps=out.timing.verify_steps * share,
            target_passes=record.target_passes,
            plain_passes=record.plain_passes,
            drafted=record.drafted,
            tested=record.tested,
            accepted=record.accepted,
            alpha_sum=record.alpha_sum,
            tested_at=[at.tested for at in record.per_position],
            accepted_at=[at.accepted for at in record.per_position],
            alpha_at=[at.alpha_sum for at in record.per_position],
            confidence_threshold=load.confidence_threshold,
            group=prompt.group,
        )
        for prompt, record in zip(batch, out.stats.per_prompt, strict=True)
    ]


def _claim(folder: Path, prompts: Sequence[Prompt], load: Load) -> None:
    """Bind the folder to one setting and one prompt set: rows of two must never be pooled."""
    setting = {
        **asdict(load),
        "prompts": sorted(
            [prompt.id, prompt.turn, stable_hash(prompt.tokens)] for prompt in prompts
        ),
    }
    path = folder / "setting.json"
    if once(path, lambda: setting) != json.loads(json.dumps(setting)):
        raise UserError(
            f"{folder} holds measurements of another setting or prompt set: "
            "evaluate into a new folder or delete this one"
        )
