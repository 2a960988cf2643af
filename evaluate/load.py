"""A load: the serving setting that all arms are measured at."""

import zlib
from dataclasses import dataclass

from distill.errors import UserError
from distill.evaluate.records import Measurement, Prompt
from distill.speculative.round_length import DraftLength, draft_length
from distill.speculative.sampling import Sampling


@dataclass(frozen=True)
class Load:
    """The serving setting of one evaluation; the same for every arm."""

    sampling: Sampling
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    batch_size: int
    vocabulary_size: int
    seed: int
    context_edges: tuple[int, ...] = ()
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
        return self.sampling.name

    def of(self, row: Measurement) -> bool:
        """Whether the row was measured at this load."""
        return (row.sampling, row.batch_size) == (self.sampling_name, self.batch_size)


def stream(prompt: Prompt) -> int:
    """The number of the prompt's own random stream, in whatever batch or rank it is decoded."""
    return zlib.crc32(f"{prompt.id}#{prompt.turn}".encode())
