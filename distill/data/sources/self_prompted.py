"""`self_prompted`: no prompts are at hand, so the target writes the users' turns itself.

Xu et al. 2024, "Magpie: Alignment Data Synthesis from Scratch by Prompting Aligned LLMs with
Nothing", section 2.1. The stage `prepare` writes them; this source is told where they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from distill.data.sources.jsonl import JsonlSource
from distill.data.sources.mixture import MixtureSource
from distill.data.sources.rows import Problem, Row, Source
from distill.data.sources.splits import check_fractions
from distill.errors import UserError

AFTERWARDS = ("batch_size", "validation_fraction", "evaluation_fraction")
"""Fields that do not decide what is written."""


@dataclass
class SelfPromptedSource:
    """num_prompts: how many distinct ones to write, each with at most max_new_tokens.

    One of fewer than min_characters or more than max_characters is dropped, and one that is as
    like an earlier one as `likeness` (see `distill.data.self_prompt`). At most tries · num_prompts
    are sampled. shard_rows: samples that an interruption can lose.
    """

    num_prompts: int = 2000
    temperature: float = 1.0
    top_p: float = 0.95
    max_new_tokens: int = 128
    min_characters: int = 10
    max_characters: int = 2000
    likeness: float = 0.7
    tries: int = 4
    batch_size: int = 16
    shard_rows: int = 128
    validation_fraction: float = 0.05
    evaluation_fraction: float = 0.05
    _written: JsonlSource | None = field(default=None, init=False, repr=False)

    def check(self) -> None:
        """Raise a UserError for a setting out of range."""
        check_fractions(self.validation_fraction, self.evaluation_fraction)
        for name in ("num_prompts", "max_new_tokens", "min_characters", "tries", "batch_size"):
            self._at_least(name, 1)
        self._at_least("shard_rows", 1)
        self._at_least("max_characters", self.min_characters)
        if not 0.0 < self.likeness <= 1.0:
            raise UserError(
                f"data.source.likeness is {self.likeness}; use 0 < likeness <= 1, where 1 drops "
                "repetitions only"
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value < least:
            raise UserError(f"data.source.{name} is {value}; it must be at least {least}")

    def writing(self) -> dict[str, Any]:
        """The settings that decide what is written."""
        names = [one.name for one in fields(self) if one.init and one.name not in AFTERWARDS]
        return {name: getattr(self, name) for name in names}

    def read(self, path: Path) -> None:
        """Take the rows from the file that the stage wrote."""
        self._written = JsonlSource(
            str(path),
            validation_fraction=self.validation_fraction,
            evaluation_fraction=self.evaluation_fraction,
        )
        self._written.check()

    def rows(self) -> Iterator[Row]:
        """The rows that were written."""
        return self._read.rows()

    @property
    def problems(self) -> list[Problem]:
        """What was skipped or mended among them."""
        return self._read.problems

    def fingerprint(self) -> dict[str, Any]:
        """That of the file that was written."""
        return {**self._read.fingerprint(), "source": "self_prompted"}

    @property
    def _read(self) -> JsonlSource:
        if self._written is None:
            raise UserError(
                "self-prompted rows are not written yet, so nothing is known of their domains: "
                "drop evaluate.domains and evaluate.floors, or give evaluate.prompts a file"
            )
        return self._written


def self_prompted(source: Source) -> list[SelfPromptedSource]:
    """Those sources in `source`, itself or parts of a mixture, that have to be written first."""
    if isinstance(source, MixtureSource):
        return [one for part in source.parts.values() for one in self_prompted(part["source"])]
    return [source] if isinstance(source, SelfPromptedSource) else []
