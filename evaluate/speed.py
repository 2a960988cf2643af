"""Real decoding, timed: all arms on the same prompts, interleaved A B … B A, resumable."""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement, Prompt, read_rows, write_rows
from distill.evaluate.statistics import merge_rows
from distill.speculative import Drafter, Output, Sampling, decode

REPETITIONS = 2
"""Each batch is decoded by all arms in one order and then in the reverse one."""

Progress = Callable[[int, int, str], None]
"""progress(batches done, batches in all, what was just measured)."""

Entrants = Callable[[list[Measurement]], list[Arm]]
"""Which arms decode the next batch, given everything measured so far."""


@dataclass(frozen=True)
class Load:
    """The serving setting of one evaluation; the same for every arm."""

    sampling: Sampling
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    batch_size: int
    vocabulary_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise UserError("evaluate.max_new_tokens and evaluate.batch_size must be at least 1")


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
) -> list[Measurement]:
    """Rows of all arms over all prompts. A batch is written whole, so a kill loses at most one.

    Call it again with the same folder to go on; another setting in that folder is a UserError.
    """
    batches = list(_batches(prompts, load))
    _claim(folder, prompts, load)
    parts: list[list[Measurement]] = []
    warmed: set[tuple[Arm, int]] = set()
    for index, batch in enumerate(batches):
        path = folder / f"batch-{index:05d}.parquet"
        if not path.exists():
            arms = _rotated([PLAIN_ARM, *entrants(_merge(parts))], index)
            _warm_up(bench, arms, batch, load, warmed)
            write_rows(path, _measure_batch(bench, arms, batch, load))
        parts.append(read_rows(path))
        progress(index + 1, len(batches), f"{batch[0].domain}: {batch[0].id}")
    return _merge(parts)


def describe(sampling: Sampling) -> str:
    """The setting's name in tables: `greedy`, or the temperature and what differs from defaults."""
    if sampling.temperature == 0:
        return "greedy"
    changed = [
        f"{field.name}={getattr(sampling, field.name):g}"
        for field in fields(sampling)
        if field.name != "temperature" and getattr(sampling, field.name) != field.default
    ]
    return " ".join([f"T={sampling.temperature:g}", *changed])


def _batches(prompts: Sequence[Prompt], load: Load) -> Iterator[list[Prompt]]:
    """Prompts of like length share a batch; the batches come in an order that favours no length."""
    ordered = sorted(prompts, key=lambda prompt: (len(prompt.tokens), prompt.id))
    batches = [
        ordered[start : start + load.batch_size]
        for start in range(0, len(ordered), load.batch_size)
    ]
    for index in np.random.default_rng(load.seed).permutation(len(batches)):
        yield batches[index]


def _rotated(arms: list[Arm], index: int) -> list[Arm]:
    """Another arm is first in each batch, so that no arm owns the ends of A B … B A."""
    start = index % len(arms)
    return arms[start:] + arms[:start]


def _measure_batch(
    bench: Bench, arms: list[Arm], batch: list[Prompt], load: Load
) -> list[Measurement]:
    rows: list[Measurement] = []
    for repetition in range(REPETITIONS):
        for arm in arms if repetition % 2 == 0 else reversed(arms):
            out = _decode(bench, arm, batch, load, load.max_new_tokens, repetition)
            rows += _rows(out, arm, batch, load, repetition)
    return rows


def _warm_up(
    bench: Bench, arms: list[Arm], batch: list[Prompt], load: Load, warmed: set[tuple[Arm, int]]
) -> None:
    """Compilation, graph capture and first touches of memory: once per arm and batch shape."""
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
        num_draft_tokens=arm.num_draft_tokens,
        sampling=load.sampling,
        max_new_tokens=most,
        eos_token_ids=load.eos_token_ids,
        seed=load.seed + repetition,
        row_ids=[zlib.crc32(prompt.id.encode()) for prompt in batch],
        vocabulary_size=load.vocabulary_size,
    )


def _rows(
    out: Output, arm: Arm, batch: list[Prompt], load: Load, repetition: int
) -> list[Measurement]:
    share = 1 / len(batch)
    return [
        Measurement(
            prompt_id=prompt.id,
            domain=prompt.domain,
            candidate=arm.candidate,
            num_draft_tokens=arm.num_draft_tokens,
            batch_size=load.batch_size,
            sampling=describe(load.sampling),
            repetition=repetition,
            unit=batch[0].id,
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
        )
        for prompt, record in zip(batch, out.stats.per_prompt, strict=True)
    ]


def _merge(parts: list[list[Measurement]]) -> list[Measurement]:
    return merge_rows(parts, lambda row: row.key)


def _claim(folder: Path, prompts: Sequence[Prompt], load: Load) -> None:
    """The folder belongs to one setting and one prompt set: rows of two must never be pooled."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "setting.json"
    setting = json.dumps(
        {**asdict(load), "prompts": sorted(prompt.id for prompt in prompts)}, indent=1
    )
    if path.exists() and path.read_text(encoding="utf-8") != setting:
        raise UserError(
            f"{folder} holds measurements of another setting or prompt set: "
            "evaluate into a new folder or delete this one"
        )
    path.write_text(setting, encoding="utf-8")
