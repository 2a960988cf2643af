"""The teacher's exact signal: hidden states and a head, turned into logits chunk by chunk.

Shapes: T tokens, V vocabulary, D teacher width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from distill.losses.fused import BLOCK_ROWS, check_hidden, logits_buffer, padded_rows
from distill.losses.head import Head
from distill.losses.kernels import Scores, TokenLoss, kernel_of
from distill.losses.mixture import Mixture


@dataclass(frozen=True)
class HiddenSignal:
    """The exact distribution, not multiplied out: normed hidden states [T, D], a head of V rows."""

    hidden: Tensor
    head: Head

    @property
    def shape(self) -> tuple[int, int | None]:
        return len(self.hidden), self.head.weight.shape[0]

    def check(self, divergence: Mixture) -> None:
        """Every divergence can be made of the whole distribution."""
        check_hidden("teacher", self.hidden, self.head)

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> "DenseScorer":
        head = self.head.sliced(vocabulary_size)
        return DenseScorer(self.hidden, head, loss, labels, chunk_size)


class DenseScorer:
    """Scores student logits against ``head(hidden)``, hidden [T, D]; see ``fused.Scorer``."""

    def __init__(
        self, hidden: Tensor, head: Head, loss: TokenLoss, labels: Tensor | None, chunk_size: int
    ):
        self._head = head.detach()
        self._hidden = hidden.detach().to(head.weight.dtype)
        self._temperature = loss.temperature
        self._block = BLOCK_ROWS if hidden.device.type == "cpu" else padded_rows(chunk_size)
        self._logits = logits_buffer(hidden, head, chunk_size)
        # The last block of the last chunk reads on past the tokens.
        rows = len(self._logits)
        self._labels = None if labels is None else torch.nn.functional.pad(labels, (0, rows))
        self._kernel = kernel_of(loss)

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        self._head.logits_into(self._logits[:count], self._hidden[first : first + count])
        scores: list[Scores] = []
        for row in range(0, count, self._block):
            block = slice(row, row + self._block)
            labels = None if self._labels is None else self._labels[first:][block]
            student, teacher = student_logits[block], self._logits[block]
            scores.append(self._kernel(student, teacher, self._temperature, labels))
        values, overlap, agree = (torch.cat(parts)[:count] for parts in zip(*scores, strict=True))
        return Scores(values, overlap, agree)
