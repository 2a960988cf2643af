"""How long the stages of a job take: rates that are measured in some seconds, and work to be done.

The choice of a size is arithmetic on both.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distill.data.datamodule import CorpusDataModule
from distill.training.config import BudgetConfig, TrainerConfig
from distill.training.run import train_draft

VALIDATED = 1 / 3
"""Of the time in which a token is learnt: a forward pass, where learning adds a backward one."""
WARM_UP, TIMED = 2, 3
"""Windows of a training: the first ones compile and allocate."""


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second, once it is warm.

    answered: tokens, by batches of `generate.batch_size`. read: tokens, by the target's pass over
    whole rows. learnt: supervised tokens, by the draft. step_seconds: of a step of plain decoding,
    by batch size.
    """

    answered: float
    read: float
    learnt: float
    step_seconds: Mapping[int, float]


@dataclass(frozen=True)
class Work:
    """What a job has to do, in tokens.

    prompts, answers: of the rows that the target answers, at the answers' full length. kept: read
    for the cache; 0 where the signal is live. start: read before a draft can be made. learnt: the
    budget; infinite where only `minutes` bounds the training. validated: supervised tokens of all
    validations. decoded_prompts: read by the evaluation. steps: of its decoding, by batch size;
    an arm is taken to be as fast as the target alone.
    """

    prompts: float = 0.0
    answers: float = 0.0
    kept: float = 0.0
    start: float = 0.0
    learnt: float = 0.0
    validated: float = 0.0
    decoded_prompts: float = 0.0
    steps: Mapping[int, float] | None = None
    minutes: float = math.inf


def expected_minutes(work: Work, rates: Rates) -> dict[str, float]:
    """Minutes of every stage that has something to do, in the order of the road."""
    steps = (work.steps or {}).items()
    learning = (work.learnt + VALIDATED * work.validated) / rates.learnt
    seconds = {
        "generate": work.prompts / rates.read + work.answers / rates.answered,
        "cache": work.kept / rates.read,
        "train": work.start / rates.read + min(learning, 60.0 * work.minutes),
        "measure": work.decoded_prompts / rates.read
        + sum(count * rates.step_seconds[batch] for batch, count in steps),
    }
    return {stage: took / 60.0 for stage, took in seconds.items() if took}


def choose_size(minutes: Mapping[str, Mapping[str, float]], limit: float) -> str:
    """The last size whose stages take at most `limit` minutes in all; the first where none does.

    minutes: of each stage, by size; sizes rise.
    """
    fitting = [name for name, stages in minutes.items() if sum(stages.values()) <= limit]
    return fitting[-1] if fitting else next(iter(minutes))


class Watched(CorpusDataModule):
    """Notes when each window is begun, and how many tokens are learnt from it."""

    def __init__(self, folder: Path, **settings: Any):
        super().__init__(folder, **settings)
        self.begun: list[tuple[float, int]] = []

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer is not None and self.trainer.training:
            tokens = sum(int(one["supervised"].sum()) for one in batch)
            self.begun.append((time.perf_counter(), tokens))
        return super().on_before_batch_transfer(batch, dataloader_idx)

    @property
    def full_window(self) -> float:
        """Supervised tokens of a window that is full."""
        rows = self._rows["train"]
        return self.tokens_per_step * rows.supervised_tokens / float(rows.lengths.sum())

    @property
    def learnt_per_second(self) -> float:
        """Supervised tokens a second from the end of the warm-up on."""
        warm = self.begun[WARM_UP:]
        return sum(tokens for _, tokens in warm[:-1]) / (warm[-1][0] - warm[0][0])


def time_training(data: Watched, trainer: TrainerConfig, folder: Path, **training: Any) -> float:
    """Supervised tokens a second of a short training in this process, once it is warm.

    training: the other arguments of `train_draft`. What it writes lies in `folder`.
    """
    data.setup()
    train_draft(
        datamodule=data,
        trainer=replace(
            trainer,
            devices="1",
            num_nodes=1,
            strategy="auto",
            checkpoints=1,
            keep=None,
            validate_every=1.0,
            decode_every=0.0,
            monitor="alpha",
            resume_every_seconds=math.inf,
        ),
        budget=BudgetConfig(tokens=math.ceil((WARM_UP + TIMED) * data.full_window) + 1),
        folder=folder,
        **training,
    )
    return data.learnt_per_second
