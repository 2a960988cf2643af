"""What the student learns from, as types: one per form in which the target's distribution is known.

B rows, S tokens a row, T supervised tokens of the micro-batch, D the target's width, V vocabulary.
"""

from typing import Protocol

import torch
from torch import Tensor

from distill.losses.dense import HiddenSignal
from distill.losses.sparse import Sampled, TopK

TeacherSignal = HiddenSignal | TopK | Sampled


class Teacher(Protocol):
    """A source of signals; live and cached ones look the same to the trainer."""

    @property
    def width(self) -> int:
        """D."""
        ...

    def to(self, device: torch.device) -> None:
        """Go where the draft trains."""
        ...

    def signal(self, batch: dict[str, Tensor], positions: Tensor) -> TeacherSignal:
        """The target's next-token distributions at `positions` (see `predicting_positions`)."""
        ...


def rows_and_places(batch: dict[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    """Of flat positions [T]: the corpus row that each lies in, and its place in that row."""
    if "rows" in batch:  # several rows in one sequence
        places = batch["position_ids"].flatten()[positions]
        return batch["rows"].flatten()[positions], places
    width = batch["input_ids"].shape[1]
    return batch["row_index"][positions // width], positions % width
