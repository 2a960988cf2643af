"""A load: the serving setting that all arms are measured at."""

import zlib
from dataclasses import dataclass, fields

from distill.errors import UserError
from distill.evaluate.records import Measurement, Prompt
from distill.speculative.round_length import DraftLength, draft_length
from distill.speculative.sampling import Sampling

NO_PART_OF_GREEDY = {"top_k", "top_p", "min_p"}


@dataclass(frozen=True)
class Load:
    """The serving setting of one evaluation; the same for every arm."""

    sampling: Sampling
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    batch_size: int
    vocabulary_size: int
    seed: int
    contexts: tuple[int, ...] = ()
    """Edges of the context-length buckets."""
    confidence_threshold: float = 0.0
    """Rounds end early behind a token of less confidence; 0: they do not."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.batch_size < 1:
            raise UserError("evaluate.max_new_tokens and evaluate.batch_sizes must be at least 1")

    def draft_length(self, k: int) -> DraftLength:
        """How long the rounds of an arm of this k are."""
        return draft_length(k, self.confidence_threshold)

    @property
    def sampling_name(self) -> str:
        return describe(self.sampling)

    def of(self, row: Measurement) -> bool:
        """Whether the row was measured at this load."""
        return (row.sampling, row.batch_size) == (self.sampling_name, self.batch_size)


def describe(sampling: Sampling) -> str:
    """The setting's name in tables: `greedy` or the temperature, and what differs from defaults.

    Settings of one name have one law: what cannot move the argmax is no part of a greedy one's.
    """
    silent = {"temperature"} | (NO_PART_OF_GREEDY if sampling.greedy else set())
    changed = [
        f"{field.name}={getattr(sampling, field.name):g}"
        for field in fields(sampling)
        if field.name not in silent and getattr(sampling, field.name) != field.default
    ]
    return " ".join(["greedy" if sampling.greedy else f"T={sampling.temperature:g}", *changed])


def stream(prompt: Prompt) -> int:
    """The number of the prompt's own random stream, in whatever batch or rank it is decoded."""
    return zlib.crc32(f"{prompt.id}#{prompt.turn}".encode())
