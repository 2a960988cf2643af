"""Training holds no memory that it will not use again."""

from lightning import Trainer

from distill.process import return_freed_memory
from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule


class ReturnMemory(TrainingCallback):
    """Gives what is free back to the system, once, after the first window.

    The first step makes the optimizer's state where the first loss had its buffers. What that
    leaves of them fits none of the next loss's, and would be held besides them to the end.
    """

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        self._returned = False

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        if not self._returned:
            return_freed_memory()
            self._returned = True
