"""How far training is: a bar on a terminal, a line now and then in a log."""

import logging
import time
from datetime import timedelta

from lightning import Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
SHOWN = (
    "train/loss",
    "train/alpha",
    "validation/alpha",
    "decoding/alpha",
    "decoding/tokens_per_pass",
    "decoding/predicted_speedup",
)


class BudgetProgress(TrainingCallback, ProgressBar):
    """Share of the budget, time left, tokens per second, the last loss and alpha; on rank 0."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True
        console = Console(stderr=True)
        self._live = console.is_terminal
        self._bar = Bar(
            TextColumn("train"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("train", total=1.0, note="")

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        """Lightning calls this on all ranks but the first."""
        self._enabled = False

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        self._started = self._said = time.monotonic()
        self._first = module.clock.progress
        if self._enabled:
            self._bar.start()

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        if not self._enabled:
            return
        if self._live:
            progress = min(1.0, module.clock.progress)
            self._bar.update(self._task, completed=progress, note=self._note(trainer, module))
        elif time.monotonic() - self._said >= SECONDS_BETWEEN_LINES or module.clock.finished:
            self._said = time.monotonic()
            share = 100 * min(1.0, module.clock.progress)
            log.info("train %3.0f%%, %s", share, self._note(trainer, module))

    def ended(self, trainer: Trainer, module: DistillModule) -> None:
        self._bar.stop()

    def _note(self, trainer: Trainer, module: DistillModule) -> str:
        clock = module.clock
        parts = [
            f"{self._left(clock.progress)} left",
            f"{clock.spent.tokens:,} tokens",
            f"{clock.tokens_per_second:.0f} tokens/s",
        ]
        for name in SHOWN:
            if name in trainer.callback_metrics:
                parts.append(f"{name.replace('train/', '')} {trainer.callback_metrics[name]:.3f}")
        return ", ".join(parts)

    def _left(self, progress: float) -> str:
        """Time left at this session's pace, as h:mm:ss."""
        gained = progress - self._first
        if gained <= 0:
            return "?"
        seconds = (time.monotonic() - self._started) * max(0.0, 1.0 - progress) / gained
        return str(timedelta(seconds=round(seconds)))
