"""The live teacher of the fused loss: hidden states and a head, turned into logits chunk by chunk.

Shapes: T tokens, V vocabulary, D teacher width, C tokens per chunk, R rows per block.
"""

import functools

import torch
from torch import Tensor

from distill.losses.chunked import BLOCK_ROWS, padded_rows
from distill.losses.divergence import forward_kl
from distill.losses.head import Head
from distill.losses.kernels import Divergence, ForwardKLKernel, Kernel, Scores, autograd_kernel





class DenseTeacher:
    """Scores student logits against ``head(hidden)``; see ``ChunkTeacher`` in ``chunked``."""

    def __init__(
        self,
        hidden: Tensor,
        head: Head,
        divergence: Divergence,
        temperature: float,
        chunk_size: int,
        *,
        compiled: bool,
    ):
        self._hidden = hidden.detach().to(head.weight.dtype)
        self._head = head.detach()
        self._temperature = temperature
        V = head.weight.shape[0]
        self._logits = hidden.new_zeros(padded_rows(chunk_size), V, dtype=head.weight.dtype)
        self._block = BLOCK_ROWS if hidden.device.type == "cpu" else chunk_size
        self._kernel = _kernel(divergence, compiled, self._block, head.weight)

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        hidden = self._hidden[first : first + count]
        self._head.logits_into(self._logits[:count], hidden)
        scores: list[Scores] = []
        for row in range(0, count, self._block):
            block = slice(row, row + self._block)
            student, teacher = student_logits[block], self._logits[block]
            scores.append(self._kernel(student, teacher, self._temperature))
        values, overlap, agree = (torch.cat(parts)[:count] for parts in zip(*scores, strict=True))
        return Scores(values, overlap, agree)

def _kernel(divergence: Divergence, compiled: bool, rows: int, weight: Tensor) -> Kernel:
    if compiled:
        return _compiled_kernel(divergence)
    if divergence is forward_kl and weight.device.type == "cpu":
        return ForwardKLKernel(rows, weight.shape[0], weight.dtype)
    return autograd_kernel(divergence)


@functools.cache
def _compiled_kernel(divergence: Divergence) -> Kernel:
    return torch.compile(autograd_kernel(divergence), dynamic=False)
