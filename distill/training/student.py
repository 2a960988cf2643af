"""The draft and its loss as one module: what wraps or shards it sees one forward pass.

B rows, S tokens a row, T supervised tokens of the micro-batch.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.losses.fused import Signal
from distill.teacher.head import head_of, last_hidden
from distill.training.objective import Objective


class Student(nn.Module):
    """Draft hidden states at the supervised positions, then the loss over the common vocabulary."""

    def __init__(self, draft: PreTrainedModel, vocabulary_size: int):
        super().__init__()
        self.draft = draft
        self._vocabulary_size = vocabulary_size

    def forward(
        self,
        batch: dict[str, Tensor],
        positions: Tensor,
        signal: Signal | None,
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM over the T `positions` (flat into `input_ids` [B, S]) and its metric sums.

        `signal` is None for a micro-batch without a supervised token (T = 0): the loss is then a
        zero that is still connected to every parameter, so that ranks that wait for each other's
        gradients get them.
        """
        hidden = last_hidden(self.draft, batch)
        if signal is None:
            return 0.0 * hidden.sum() + self._head_zero(), {}
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        states = hidden.flatten(0, 1).index_select(0, positions)
        # The loss casts the head once; autocast would do so again for every chunk.
        with torch.autocast(kind, enabled=False):
            return objective(
                states,
                head_of(self.draft),
                signal,
                batch["input_ids"].flatten()[positions + 1],
                vocabulary_size=self._vocabulary_size,
                compute_dtype=dtype,
            )

    def _head_zero(self) -> Tensor:
        """A zero connected to the head."""
        head = head_of(self.draft)
        zero = 0.0 * head.weight.sum()
        return zero if head.bias is None else zero + 0.0 * head.bias.sum()
