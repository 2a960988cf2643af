"""Training ends when its budget is spent."""

from typing import Any

from lightning import Callback, Trainer

from distill.training.module import DistillModule


class Budget(Callback):
    """Stops after the window that reaches the budget, so that the same data always ends at the same token."""

    def on_train_start(self, trainer: Trainer, pl_module: DistillModule) -> None:
        """A run that was killed between its last step and its stage's end has nothing left to train."""
        trainer.should_stop = pl_module.clock.finished

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: DistillModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if pl_module.clock.finished:
            trainer.should_stop = True
