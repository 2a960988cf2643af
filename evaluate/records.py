"""One row per prompt × setting × candidate × repetition: what was measured, before any pooling."""

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path

import pyarrow
from pyarrow import parquet

from distill.errors import UserError
from distill.evaluate.independence import source_of
from distill.files import read_parquet, whole_file

MEASUREMENTS = "measurements.parquet"
PLAIN = "plain"
"""The candidate name of the target's own decoding."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids. id names its conversation; turn is its place in it, from 0.

    group: what it was cut from, where that is known (see `independence.source_of`).
    """

    id: str
    domain: str
    tokens: list[int]
    turn: int = 0
    group: str = ""


@dataclass(frozen=True)
class Arm:
    """One way to decode: a candidate at one k, or plain decoding (k = 0)."""

    candidate: str
    num_draft_tokens: int


PLAIN_ARM = Arm(PLAIN, 0)
LOOKUP = "prompt lookup"
"""The candidate name of drafts that are looked up in a row's own context: the untrained baseline
that a draft has to beat. It is measured and shown, and never chosen."""


@dataclass(frozen=True)
class Measurement:
    """One prompt decoded once by one arm. Times in seconds: an equal share of its batch's.

    prompt_id names the conversation. unit names the conversations that were batched together: they
    shared one clock, so times are resampled by it. draft_steps and verify_steps count the batch's
    passes, shared out like the times. bucket: of the prompt's length. committed: tokens emitted.
    confidence_threshold: where above 0, rounds of fewer than num_draft_tokens ended below it.
    group: of the prompt.
    """

    prompt_id: str
    turn: int
    domain: str
    bucket: str
    candidate: str
    num_draft_tokens: int
    batch_size: int
    sampling: str
    repetition: int
    unit: str
    prompt_tokens: int
    committed: int
    finish_reason: str
    prefill_seconds: float
    decode_seconds: float
    draft_seconds: float
    verify_seconds: float
    draft_steps: float
    verify_steps: float
    target_passes: int
    plain_passes: int
    drafted: int
    tested: int
    accepted: int
    alpha_sum: float
    tested_at: list[int]
    accepted_at: list[int]
    alpha_at: list[float]
    confidence_threshold: float = 0.0
    group: str = ""

    @property
    def source(self) -> str:
        """What the prompt was cut from; prompts of one source are no fresh evidence."""
        return source_of(self.prompt_id, self.group)

    @property
    def arm(self) -> Arm:
        return Arm(self.candidate, self.num_draft_tokens)

    @property
    def key(self) -> tuple[str, str, int, str, int, int, int]:
        """What identifies a measurement: rows of several ranks or restarts share no key."""
        return (
            self.candidate,
            self.sampling,
            self.batch_size,
            self.prompt_id,
            self.turn,
            self.num_draft_tokens,
            self.repetition,
        )


def bucket_of(tokens: int, edges: Sequence[int]) -> str:
    """The label of the context-length bucket: `≤256`, `257–1024`, …, `>4096`. Edges rise."""
    if not edges or tokens <= edges[0]:
        return f"≤{edges[0]}" if edges else "all"
    for low, high in pairwise(edges):
        if tokens <= high:
            return f"{low + 1}–{high}"
    return f">{edges[-1]}"


def write_rows(path: Path, rows: Sequence[Measurement]) -> None:
    """Write a Parquet file, whole or not at all."""
    with whole_file(path) as partial:
        parquet.write_table(pyarrow.Table.from_pylist([asdict(row) for row in rows]), partial)


def read_rows(path: Path) -> list[Measurement]:
    """The rows of one file. UserError where it is not a whole file of them."""
    table = read_parquet(path)
    needed = [field.name for field in fields(Measurement) if field.default is MISSING]
    if missing := [name for name in needed if name not in table.column_names]:
        raise UserError(f"{path} has no column {missing[0]!r}: it is not a measurements file")
    known = [field.name for field in fields(Measurement) if field.name in table.column_names]
    return [Measurement(**record) for record in table.select(known).to_pylist()]
