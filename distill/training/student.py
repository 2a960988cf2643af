"""The draft and its loss as one module: what wraps or shards it sees one forward pass.

B rows, S tokens a row, T supervised tokens of the micro-batch, d and D widths of draft and target.
"""

import torch
from torch import Tensor, distributed, nn
from transformers import PreTrainedModel

from distill.losses.matching import mismatch
from distill.teacher.head import head_of
from distill.teacher.hidden import last_hidden
from distill.teacher.signals import HiddenSignal, TeacherSignal
from distill.training.objective import Objective


class Student(nn.Module):
    """Draft hidden states at the supervised positions, then the loss over the common vocabulary.

    `match_width`: D, when a first phase regresses the target's states through a learned map; else
    None. The map is trained with the draft and never saved with it.
    """

    def __init__(self, draft: PreTrainedModel, vocabulary_size: int, match_width: int | None):
        super().__init__()
        self.draft = draft
        self._vocabulary_size = vocabulary_size
        self.projection = None
        if match_width is not None:
            self.projection = nn.Linear(_width(draft), match_width, bias=False)

    def forward(
        self,
        batch: dict[str, Tensor],
        positions: Tensor,
        signal: TeacherSignal | None,
        objective: Objective | None,
        reference: HiddenSignal | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM over the T `positions` (flat into `input_ids` [B, S]) and its metric sums.

        `objective` None: match hidden states. `reference`: a reference draft's states, for
        an objective that compares with it. `signal` is None for a micro-batch without a
        supervised token (T = 0): the loss is then a zero that is still connected to every
        parameter, so that ranks that wait for each other's gradients get them.
        """
        hidden = last_hidden(self.draft, batch)
        if signal is None:
            return 0.0 * hidden.sum() + self._unused(), {}
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        states = hidden.flatten(0, 1).index_select(0, positions)
        # The loss casts the head once; autocast would do so again for every chunk.
        with torch.autocast(kind, enabled=False):
            if objective is None:
                loss, sums = self._match(states, signal)
            else:
                loss, sums = objective(
                    states,
                    head_of(self.draft),
                    signal,
                    batch["input_ids"].flatten()[positions + 1],
                    vocabulary_size=self._vocabulary_size,
                    compute_dtype=dtype,
                    reference=reference,
                )
        # Ranks wait for every parameter's gradient; alone, one without any costs nothing.
        shared = distributed.is_available() and distributed.is_initialized()
        needs_all = shared and self.projection is not None
        return (loss + self._unused() if needs_all else loss), sums

    def _match(self, states: Tensor, signal: TeacherSignal) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(signal, HiddenSignal)  # `Objective.check` let nothing else through
        assert self.projection is not None
        values = mismatch(states, self.projection.weight, signal.hidden)
        sums = {"mismatch": values.sum().detach(), "tokens": torch.tensor(float(len(values)))}
        return values.sum(), sums

    def left_out(self, matching: bool) -> list[Tensor]:
        """What a phase does not train: the head while matching, then the map.

        Where ranks exchange gradients these get zeros, which an optimizer must not count as a step.
        """
        if self.projection is None:
            return []
        if not matching:
            return [self.projection.weight]
        tied = {id(p) for p in self.draft.get_input_embeddings().parameters()}
        head = head_of(self.draft)
        return [p for p in (head.weight, head.bias) if p is not None and id(p) not in tied]

    def _unused(self) -> Tensor:
        """A zero connected to what a loss may leave out: the head, or the map."""
        head = head_of(self.draft)
        zero = 0.0 * head.weight.sum()
        if head.bias is not None:
            zero = zero + 0.0 * head.bias.sum()
        return zero if self.projection is None else zero + 0.0 * self.projection.weight.sum()


def _width(draft: PreTrainedModel) -> int:
    return head_of(draft).weight.shape[1]
