"""How far training is: a bar on a terminal, a line now and then in a log."""

import logging
import time

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from distill.progress import Pace, terminal
from distill.training.callbacks.base import TrainingCallback
from distill.training.clock import Clock
from distill.training.module import DistillModule

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 10.0
LOADING = "loading the data"
FIRST_STEP = "first step, which compiles what is compiled"
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
        console = terminal()
        self._live = console is not None
        self._bar = Bar(
            TextColumn("train"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not self._live,
        )
        self._task = self._bar.add_task("train", total=1.0, note="")
        self._pace = Pace()
        self._said = time.monotonic()

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        """Lightning calls this on all ranks but the first."""
        self._enabled = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self._enabled:
            self._bar.start()
            self._say(0.0, LOADING)

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        if self._enabled:
            self._say(module.clock.progress, FIRST_STEP)

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        if not self._enabled:
            return
        self._pace.mark(module.clock.progress)
        waited = time.monotonic() - self._said >= SECONDS_BETWEEN_LINES
        if self._live or waited or module.clock.finished:
            self._say(module.clock.progress, self._note(trainer, module.clock))

    def ended(self, trainer: Trainer, module: DistillModule) -> None:
        self._bar.stop()

    def _say(self, progress: float, note: str) -> None:
        self._said = time.monotonic()
        progress = min(1.0, progress)
        if self._live:
            self._bar.update(self._task, completed=progress, note=note)
        else:
            log.info("train %3.0f%%, %s", 100 * progress, note)

    def _note(self, trainer: Trainer, clock: Clock) -> str:
        parts = [
            f"{self._pace.left(1.0 - clock.progress)} left",
            f"{clock.spent.tokens:,} tokens",
            f"{clock.tokens_per_second:.0f} tokens/s",
        ]
        for name in SHOWN:
            if name in trainer.callback_metrics:
                parts.append(f"{name.replace('train/', '')} {trainer.callback_metrics[name]:.3f}")
        return ", ".join(parts)
