"""Teachers: sources of what the student learns, from the target itself or from what it once said.

B rows, S tokens a row, T supervised tokens of the micro-batch.
"""

from typing import Protocol

import torch
from torch import Tensor

from distill.losses.fused import Signal


class Teacher(Protocol):
    """A source of signals; live and cached ones look the same to the trainer."""

    def to(self, device: torch.device) -> None:
        """Go where the draft trains."""
        ...

    def signal(self, batch: dict[str, Tensor], positions: Tensor) -> Signal:
        """The target's next-token distributions at the flat `positions` [T] of [B, S].

        The positions are those of `predicting_positions`.
        """
        ...
