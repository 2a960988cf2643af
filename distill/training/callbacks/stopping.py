"""What ends training: a spent budget, and SIGTERM or Ctrl-C with everything saved."""

import signal
import threading
from types import FrameType
from typing import Any

from lightning import Trainer

from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopAtBudget(TrainingCallback):
    """Stops after the window that reaches the budget: the same data ends at the same token."""

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """A run killed between its last step and its stage's end has nothing left to train."""
        trainer.should_stop = module.clock.finished

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        if module.clock.finished:
            trainer.should_stop = True


class StopOnSignal(TrainingCallback):
    """Notes the signal; the module tells the other ranks, and `Resume` saves and stops.

    It replaces Lightning's own SIGTERM handler for the time of training: that one broadcasts from
    inside the handler and raises in the middle of a step. A second Ctrl-C ends the process at once;
    a repeated SIGTERM, which launchers send along with the group's, does not.
    """

    def __init__(self) -> None:
        self._former: dict[signal.Signals, Any] = {}

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets only the main thread set handlers, and runs them there.

        def stop(number: int, frame: FrameType | None) -> None:
            module.stop_signal = number
            signal.signal(signal.SIGINT, signal.default_int_handler)

        self._former = {number: signal.signal(number, stop) for number in STOP_SIGNALS}

    def ended(self, trainer: Trainer, module: DistillModule) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self._former = {}
