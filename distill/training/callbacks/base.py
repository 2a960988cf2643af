"""The three moments at which our callbacks act, typed for the module they act on."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from distill.training.module import DistillModule


class TrainingCallback(Callback):
    """Subclasses override what they need of `started`, `after_window` and `ended`."""

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """Everything is loaded or restored; the first window comes next."""

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        """A window is trained and the clock knows of it."""

    def ended(self, trainer: Trainer, module: DistillModule) -> None:
        """Training is over, or an exception ended it."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started(trainer, _ours(pl_module))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        self.after_window(trainer, _ours(pl_module))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.ended(trainer, _ours(pl_module))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.ended(trainer, _ours(pl_module))


def _ours(module: LightningModule) -> DistillModule:
    if not isinstance(module, DistillModule):
        raise TypeError(f"this callback goes with a DistillModule, not a {type(module).__name__}")
    return module
