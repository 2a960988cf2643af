"""The fused loss against a sparse signal: no teacher pass, no teacher logits.

Shapes: T tokens, V vocabulary, d student width, R rows per block.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from distill.losses.acceptance import alpha
from distill.losses.checks import check_chunk, check_hidden, check_tokens
from distill.losses.chunked import BLOCK_ROWS, chunk_tokens, chunked_linear_loss
from distill.losses.divergence import forward_kl
from distill.losses.head import Head
from distill.losses.kernels import Divergence, Scores
from distill.losses.mixture import as_divergence
from distill.losses.sparse import (
    Sampled,
    TopK,
    buckets,
    check_sampled,
    check_unlabelled,
    sampled_alpha,
    sampled_divergence,
    top_k_divergence,
)


def fused_sparse_loss(
    student_hidden: Tensor,
    student_head: Tensor | Head,
    signal: TopK | Sampled,
    *,
    divergence: str | Mapping[str, float] | Divergence = forward_kl,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    vocabulary_size: int | None = None,
    compute_dtype: torch.dtype | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """``fused_linear_loss`` with a cached signal of T rows in the place of the teacher.

    A signal does not say how many ids are real: without ``vocabulary_size`` all of the head's are.
    The temperature is the signal's, of the metrics too. Of a ``TopK`` the metric ``alpha`` is an
    upper bound (the tail is one bucket); of ``Sampled`` it is unbiased, and ``agreement`` compares
    with the likeliest drawn token.

    Raises:
        UserError: a divergence that the signal cannot give, or shapes that cannot belong together.
    """
    function = as_divergence(divergence)
    if isinstance(signal, Sampled):
        check_sampled(function)
    check_unlabelled(function)
    head = student_head if isinstance(student_head, Head) else Head(student_head)
    if vocabulary_size is not None:
        head = head.sliced(vocabulary_size)
    chunk = chunk_tokens(head.weight.shape[1], chunk_size)
    check_chunk(chunk)
    check_hidden("student", student_hidden, head)
    check_tokens(len(student_hidden), signal=signal.ids[:, 0], mask=mask, weights=weights)
    if mask is not None:
        kept = mask.nonzero().squeeze(1)
        student_hidden, signal = student_hidden.index_select(0, kept), signal.rows(kept)
        weights = None if weights is None else weights.index_select(0, kept)
    teacher = SparseTeacher(signal, function)
    dtype = compute_dtype or head.weight.dtype
    return chunked_linear_loss(student_hidden, head, teacher, chunk, dtype, weights)


class SparseTeacher:
    """Scores student logits against a sparse signal; see ``ChunkTeacher``."""

    def __init__(self, signal: TopK | Sampled, divergence: Divergence):
        self._signal = signal
        self._divergence = divergence

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        scores: list[Scores] = []
        block = BLOCK_ROWS if student_logits.device.type == "cpu" else count
        for row in range(0, count, block):
            end = min(row + block, count)
            signal = self._signal.rows(slice(first + row, first + end))
            scores.append(self._block(student_logits[row:end], signal))
        values, overlap, agree = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return Scores(values, overlap, agree)

    def _block(self, student: Tensor, signal: TopK | Sampled) -> Scores:
        def summed(x: Tensor) -> tuple[Tensor, Tensor]:
            if isinstance(signal, TopK):
                values = top_k_divergence(x, signal, self._divergence)
            else:
                values = sampled_divergence(x, signal, self._divergence)
            return values.sum(), values

        grad = cast(Callable[..., Any], torch.func.grad)  # untyped upstream
        gradient, values = grad(summed, has_aux=True)(student)
        scores = Scores(values, _alpha(student, signal), _agreement(student, signal))
        student.copy_(gradient)
        return scores


def _alpha(logits: Tensor, signal: TopK | Sampled) -> Tensor:
    if isinstance(signal, Sampled):
        return sampled_alpha(logits, signal)
    return alpha(*buckets(logits, signal))


def _agreement(logits: Tensor, signal: TopK | Sampled) -> Tensor:
    known = signal.log_probs
    if isinstance(signal, Sampled):
        known = known.masked_fill(signal.weights == 0, -torch.inf)
    likeliest = known.argmax(-1, keepdim=True)
    chosen = signal.ids.long().gather(-1, likeliest)
    return (logits.gather(-1, chosen).squeeze(-1) == logits.amax(-1)).float()
