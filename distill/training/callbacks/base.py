"""When our callbacks act: the moments of training, typed, and shares of the budget."""

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


class PeriodicMeasurement(TrainingCallback):
    """Measures whenever another share `every` of the budget is spent, and at the budget's end.

    Other callbacks may ask for the numbers too; a window is measured once, whoever asks.
    """

    def __init__(self, every: float):
        self._every = every
        self._done = 0
        self._measured: tuple[int, dict[str, float]] | None = None

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        due = int(module.clock.progress / self._every)
        if due > self._done or module.clock.finished:
            self._done = due
            self.measure(trainer, module)

    def measure(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        """Numbers of the present weights, logged when they are new. A collective call."""
        windows = module.clock.spent.windows
        if self._measured is None or self._measured[0] != windows:
            self._measured = (windows, self._measure(trainer, module))
        return self._measured[1]

    def _measure(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        """Measure and log."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._done = state_dict["done"]


def _ours(module: LightningModule) -> DistillModule:
    if not isinstance(module, DistillModule):
        raise TypeError(f"this callback goes with a DistillModule, not a {type(module).__name__}")
    return module
