"""The live teacher of the fused loss: hidden states and a head, turned into logits chunk by chunk.

Shapes: T tokens, V vocabulary, D teacher width.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from distill.losses.chunked import BLOCK_ROWS, empty_logits, padded_rows
from distill.losses.closed_forms import closed_form, closed_kernel
from distill.losses.compiler import compile_over_rows
from distill.losses.divergence import forward_kl
from distill.losses.eager import ForwardKLKernel
from distill.losses.head import Head
from distill.losses.kernels import Divergence, Kernel, Scores, autograd_kernel


class TokenLoss(NamedTuple):
    """What is computed per token, and whether torch.compile makes it."""

    divergence: Divergence
    temperature: float
    compiled: bool


class DenseTeacher:
    """Scores student logits against ``head(hidden)``, hidden [T, D]; see ``ChunkTeacher``."""

    def __init__(
        self, hidden: Tensor, head: Head, loss: TokenLoss, labels: Tensor | None, chunk_size: int
    ):
        self._head = head.detach()
        self._hidden = hidden.detach().to(head.weight.dtype)
        self._temperature = loss.temperature
        self._block = BLOCK_ROWS if hidden.device.type == "cpu" else padded_rows(chunk_size)
        rows = padded_rows(min(chunk_size, max(len(hidden), 1)))
        self._labels = None if labels is None else torch.nn.functional.pad(labels, (0, rows))
        self._logits = empty_logits(hidden, rows, min(chunk_size, len(hidden)), head)
        self._kernel = _kernel(loss, self._block, self._logits)

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


def _kernel(loss: TokenLoss, rows: int, logits: Tensor) -> Kernel:
    if loss.compiled:
        return _compiled_kernel(loss.divergence)
    if loss.divergence is forward_kl and logits.device.type == "cpu":
        return ForwardKLKernel(rows, logits.shape[1], logits.dtype)
    return autograd_kernel(loss.divergence)


@functools.cache
def _compiled_kernel(divergence: Divergence) -> Kernel:
    form = closed_form(divergence)
    if form is None:
        return compile_over_rows(autograd_kernel(divergence))
    return closed_kernel(form, divergence, compile_over_rows)
