"""A measurement at shares of the budget, and whenever another callback asks for it."""

from typing import Any

from lightning import Trainer

from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule


class Measuring(TrainingCallback):
    """Measures every `every` of the budget and at its end, once per window whoever asks."""

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
