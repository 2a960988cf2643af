"""Training ends when its budget is spent."""

from lightning import Trainer

from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule


class Budget(TrainingCallback):
    """Stops after the window that reaches the budget: the same data ends at the same token."""

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """A run killed between its last step and its stage's end has nothing left to train."""
        trainer.should_stop = module.clock.finished

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        if module.clock.finished:
            trainer.should_stop = True
