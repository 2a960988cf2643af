"""From the logits of a few tokens to their losses and the gradient by student logits.

Shapes: R rows (tokens), V vocabulary. A kernel reads student and teacher logits [R, V] and
overwrites the student's with the gradient of the summed loss by them. Callers pass a few rows at a
time, so that all passes over a row hit the processor's cache.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from distill.losses.acceptance import alpha

Divergence = Callable[..., Tensor]
"""f(student_logits [T, V], teacher_logits [T, V], temperature) -> [T], such as ``forward_kl``.

A ``Mixture`` with a hard-label term takes labels [T] as fourth argument."""


class Scores(NamedTuple):
    """Per token, [R]: loss, Σ min(p, q) at temperature 1, and `agreement`."""

    values: Tensor
    alpha: Tensor
    agreement: Tensor


Kernel = Callable[[Tensor, Tensor, float, Tensor | None], Scores]
"""(student_logits, teacher_logits, temperature, labels [R] or None), student_logits overwritten."""


def agreement(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """1 where a token is the likeliest of both (of equals any one), else 0: [R, V] ×2 → [R].

    So exactly when their distances below the two maxima add up to 0: cheaper than two argmaxes.
    """
    s, t = (side - side.amax(-1, keepdim=True) for side in (student_logits, teacher_logits))
    return ((s + t).amax(-1) == 0).float()


def autograd_kernel(divergence: Divergence) -> Kernel:
    """The kernel of any per-token divergence: its definition, differentiated by autograd."""

    def kernel(
        student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
    ) -> Scores:
        s, t = wide(student), wide(teacher)
        extra = () if labels is None else (labels,)

        def summed(x: Tensor) -> tuple[Tensor, Tensor]:
            values = divergence(x, t, temperature, *extra)
            return values.sum(), values

        grad = cast(Callable[..., Any], torch.func.grad)  # untyped upstream
        gradient, values = grad(summed, has_aux=True)(s)
        scores = Scores(values, alpha(s, t), agreement(s, t))
        student.copy_(gradient)  # last: s is the same memory when the logits are fp32
        return scores

    return kernel


def wide(logits: Tensor) -> Tensor:
    """fp32, or float64 if it already is."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
