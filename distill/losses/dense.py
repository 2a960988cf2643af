"""The teacher's exact signal: hidden states and a head, turned into logits chunk by chunk.

Shapes: T tokens, V vocabulary, D teacher width.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

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

    def take(self, index: Tensor) -> "HiddenSignal":
        """The signal of the tokens ``index`` alone."""
        return HiddenSignal(self.hidden.index_select(0, index), self.head)

    def check(self, divergence: Mixture) -> None:
        """Every divergence can be made of the whole distribution."""
        check_hidden("teacher", self.hidden, self.head)

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> "DenseScorer":
        head = self.head.sliced(vocabulary_size)
        return DenseScorer(self.hidden, head, loss, labels, chunk_size)


class Whole(NamedTuple):
    """logsumexp and maximum of the teacher's logits over all ids, at temperature 1: [T] each."""

    log_total: Tensor
    largest: Tensor


class DenseScorer:
    """Scores student logits against ``head(hidden)``, hidden [T, D]; see ``fused.Scorer``.

    whole: of a ``head`` that has not the rows of all ids.
    """

    def __init__(
        self,
        hidden: Tensor,
        head: Head,
        loss: TokenLoss,
        labels: Tensor | None,
        chunk_size: int,
        whole: Whole | None = None,
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
        self._whole = whole
        # The rows that no token fills have logits of 0, of which this is the total.
        self._log_totals = (
            None if whole is None else whole.log_total.new_full((rows,), math.log(len(head.weight)))
        )

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        self._head.logits_into(self._logits[:count], self._hidden[first : first + count])
        if self._whole is not None and self._log_totals is not None:
            self._log_totals[:count] = self._whole.log_total[first : first + count]
        scores: list[Scores] = []
        for row in range(0, count, self._block):
            block = slice(row, row + self._block)
            labels = None if self._labels is None else self._labels[first:][block]
            student, teacher = student_logits[block], self._logits[block]
            log_total = None if self._log_totals is None else self._log_totals[block]
            scores.append(self._kernel(student, teacher, self._temperature, labels, log_total))
        values, overlap, agree = (torch.cat(parts)[:count] for parts in zip(*scores, strict=True))
        if self._whole is not None:
            agree = agree * self._is_largest(self._whole.largest[first : first + count])
        return Scores(values, overlap, agree)

    def _is_largest(self, largest: Tensor) -> Tensor:
        """1 where the largest logit of the head's rows is ``largest`` [C], else 0.

        Products of two shapes may differ in their last digit: so near, they count as equal.
        """
        ours = self._logits[: len(largest)].amax(-1).to(largest.dtype)
        digit = max(torch.finfo(self._logits.dtype).eps, 2.0**-16)
        return (ours >= largest - digit * largest.abs().clamp_min(1.0)).float()
