"""The draft and its loss as one module: what wraps or shards it sees one forward pass.

B rows, S tokens a row, T supervised tokens of the micro-batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.teacher.head import head_of
from distill.teacher.signals import TeacherSignal

Objective = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""`fused_linear_loss` with its divergence, temperature and chunk size bound."""


class Student(nn.Module):
    """Draft hidden states at the supervised positions, then the loss over the common vocabulary."""

    def __init__(self, draft: PreTrainedModel, vocabulary_size: int):
        super().__init__()
        self.draft = draft
        self._vocabulary_size = vocabulary_size

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        signal: TeacherSignal | None,
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM over the T `positions` (flat into the `input_ids` [B, S]) and its metric sums.

        `signal` is None for a micro-batch without a supervised token (T = 0): the loss is then a
        zero that is still connected to every parameter, so that ranks that wait for each other's
        gradients get them.
        """
        hidden = self.draft.base_model(input_ids=input_ids, use_cache=False).last_hidden_state
        head = head_of(self.draft)
        if signal is None:
            loose = 0.0 * hidden.sum() + 0.0 * head.weight.sum()
            return loose if head.bias is None else loose + 0.0 * head.bias.sum(), {}
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        # The loss casts the head once; autocast would do so again for every chunk.
        with torch.autocast(kind, enabled=False):
            return objective(
                hidden.flatten(0, 1).index_select(0, positions),
                head,
                signal.hidden,
                signal.head,
                vocabulary_size=self._vocabulary_size,
                compute_dtype=dtype,
            )
