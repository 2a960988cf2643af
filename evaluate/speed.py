"""Real decoding, timed: all arms on the same prompts, interleaved A B … B A, resumable."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from transformers import PreTrainedModel

from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.evaluate.load import Load, describe, stream
from distill.evaluate.records import (
    PLAIN_ARM,
    Arm,
    Measurement,
    Prompt,
    bucket_of,
    read_rows,
    write_rows,
)
from distill.evaluate.shards import once, share
from distill.evaluate.statistics import merge_rows
from distill.evaluate.units import Unit, batches, units
from distill.speculative.decode import Output, decode
from distill.speculative.drafters import Drafter

REPETITIONS = 2
"""Each batch is decoded by all arms in one order and then in the reverse one."""

Progress = Callable[[int, int, str], None]
"""progress(batches done, batches in all, what was just measured)."""

Entrants = Callable[[list[Measurement]], list[Arm]]
"""Which arms decode in the next round, given everything measured so far."""


@dataclass(frozen=True)
class Bench:
    """Who decodes: the target, and a drafter by candidate name."""

    target: PreTrainedModel
    drafters: Mapping[str, Drafter]


def measure(
    bench: Bench,
    prompts: Sequence[Prompt],
    entrants: Entrants,
    load: Load,
    folder: Path,
    progress: Progress,
    first_round: int | None = None,
) -> list[Measurement]:
    """Rows of all arms over all prompts. A unit is written whole, so a kill loses at most one.

    Ranks share the units. first_round: after so many units, then twice as many, …, `entrants` is
    asked again, once all ranks have come so far; None asks once. Call it again with the same
    folder to go on; another setting in that folder is a UserError.
    """
    work = units(prompts, load.batch_size, load.seed)
    paths = [folder / f"batch-{index:05d}.parquet" for index in range(len(work))]
    _claim(folder, prompts, load)
    warmed: set[tuple[Arm, int]] = set()
    rows: list[Measurement] = []
    for start, stop in pairwise(round_ends(len(work), first_round)):
        arms = [PLAIN_ARM, *entrants(rows)]

        def make(offset: int, start: int = start, arms: list[Arm] = arms) -> None:
            index, unit = start + offset, work[start + offset]
            _warm_up(bench, arms, unit, load, warmed)
            write_rows(paths[index], _measure_unit(bench, _rotated(arms, index), unit, load))
            done = sum(path.exists() for path in paths)
            progress(done, len(paths), f"{unit[0].domain}: {unit[0].id}")

        share(paths[start:stop], make)
        rows = merge_rows([rows, *map(read_rows, paths[start:stop])], lambda row: row.key)
    return rows


def round_ends(count: int, first: int | None) -> list[int]:
    """Where rounds begin and end: 0, first, 2·first, 4·first, …, count."""
    ends = [0]
    step = first or count
    while step < count:
        ends.append(step)
        step *= 2
    return [*ends, count]


def _rotated(arms: list[Arm], index: int) -> list[Arm]:
    """Another arm is first in each batch, so that no arm owns the ends of A B … B A."""
    start = index % len(arms)
    return arms[start:] + arms[:start]


def _measure_unit(bench: Bench, arms: list[Arm], unit: Unit, load: Load) -> list[Measurement]:
    rows: list[Measurement] = []
    for batch in batches(unit):
        for repetition in range(REPETITIONS):
            for arm in arms if repetition % 2 == 0 else reversed(arms):
                out = _decode(bench, arm, batch, load, load.max_new_tokens, repetition)
                rows += _rows(out, arm, batch, load, repetition, unit[0].id)
    return rows


def _warm_up(
    bench: Bench, arms: list[Arm], unit: Unit, load: Load, warmed: set[tuple[Arm, int]]
) -> None:
    """Compilation, graph capture and first touches of memory: once per arm and batch shape."""
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
            bucket=bucket_of(len(prompt.tokens), load.contexts),
            candidate=arm.candidate,
            num_draft_tokens=arm.num_draft_tokens,
            batch_size=load.batch_size,
            sampling=describe(load.sampling),
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
        )
        for prompt, record in zip(batch, out.stats.per_prompt, strict=True)
    ]


def _claim(folder: Path, prompts: Sequence[Prompt], load: Load) -> None:
    """The folder belongs to one setting and one prompt set: rows of two must never be pooled."""
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
