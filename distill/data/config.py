"""Which rows are read, and how the target answers them. Nothing heavy is imported here."""

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from distill.content import deciding
from distill.errors import UserError

ROWS = ("train_rows", "validation_rows", "evaluation_rows")
WRITERS = ("draft", "pair")


@dataclass
class DataConfig:
    """Rows, their split and their lengths in tokens."""

    source: dict[str, Any] = deciding(default=MISSING)
    """A source by its class; what decides its rows is its content, wherever it lies."""
    max_length: int = deciding("prepare", default=512)
    prompt_tokens: int = deciding("prepare", default=128)
    """Raw text has no prompt of its own: its first tokens become the evaluation prompt."""
    train_rows: int | None = deciding("prepare", default=None)
    validation_rows: int = deciding("prepare", default=64)
    evaluation_rows: int = deciding("prepare", default=64)
    continued: float = deciding("prepare", default=0.0)
    """Share of the training windows of raw text that `generate` lets the target write on from their
    first `prompt_tokens`; above 0, it does so with all windows of validation. A draft is used on
    such text."""
    on_policy: float = deciding("train", default=0.0)
    """Share of the training rows that are answered anew each time; signal=live."""
    on_policy_by: str = deciding("train", default="draft")
    """Who answers them: `draft`, or `pair`, by speculative decoding with the target's law."""
    packing: bool = deciding("train", default=False)
    """Several training rows in one sequence, each seeing itself only."""

    def __post_init__(self) -> None:
        for name in ROWS:
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"data.{name}={value}: give values from 0 up")
        for name in ("max_length", "prompt_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name}={getattr(self, name)}: give values from 1 up")
        if not 0.0 <= self.continued <= 1.0:
            raise UserError(
                f"data.continued is {self.continued}; use a share of the windows, 0 to 1"
            )
        if not 0.0 <= self.on_policy <= 1.0:
            raise UserError(f"data.on_policy is {self.on_policy}; use a share of the rows, 0 to 1")
        if self.on_policy_by not in WRITERS:
            raise UserError(
                f"data.on_policy_by is {self.on_policy_by}; use one of {', '.join(WRITERS)}"
            )
        if self.on_policy and self.packing:
            raise UserError("data.on_policy answers rows one by one; set data.packing=false")


@dataclass
class GenerateConfig:
    """How the target answers prompts that have no text. `enabled: false`: it does not."""

    enabled: bool = True
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 256
    batch_size: int = deciding(default=8)
    """Each row has a random stream of its own, so this changes no answer but by rounding."""
    shard_rows: int = 64

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "batch_size", "shard_rows"):
            if getattr(self, name) < 1:
                raise UserError(f"generate.{name}={getattr(self, name)}: give values from 1 up")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"generate.temperature={self.temperature}: give 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise UserError(f"generate.top_p={self.top_p}: give a share above 0, up to 1")
