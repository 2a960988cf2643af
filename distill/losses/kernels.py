"""From the logits of a few tokens to their losses and the gradient by student logits.

Shapes: R rows (tokens), V vocabulary. A kernel reads student and teacher logits [R, V] and
overwrites the student's with the gradient of the summed loss by them. Callers pass a few rows at a
time, so that all passes over a row hit the processor's cache.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from distill.losses.acceptance import acceptance, alpha
from distill.losses.divergence import forward_kl, jsd

Divergence = Callable[..., Tensor]
"""f(student_logits [T, V], teacher_logits [T, V], temperature) -> [T], such as ``forward_kl``.

A ``Mixture`` with a hard-label term takes labels [T] as fourth argument."""


class Scores(NamedTuple):
    """Per token, [R]: loss, Σ min(p, q) at temperature 1, and 1 where both argmaxes are equal."""

    values: Tensor
    alpha: Tensor
    agreement: Tensor


Kernel = Callable[[Tensor, Tensor, float, Tensor | None], Scores]
"""(student_logits, teacher_logits, temperature, labels [R] or None), student_logits overwritten."""


def agreement(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """1 where student and teacher have their maximum on one token, else 0: [R, V] ×2 → [R].

    So exactly when the two maxima add up to the maximum of the sum: cheaper than two argmaxes.
    """
    both = (student_logits + teacher_logits).amax(-1)
    return (both == student_logits.amax(-1) + teacher_logits.amax(-1)).float()


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


def forward_kl_kernel(
    student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
) -> Scores:
    """``forward_kl`` in closed form, for torch.compile: three passes over a row, nothing kept."""
    s, t = wide(student), wide(teacher)
    s_max, t_max = s.amax(-1, keepdim=True), t.amax(-1, keepdim=True)
    agree = ((s + t).amax(-1) == (s_max + t_max).squeeze(-1)).float()
    s, t = s - s_max, t - t_max
    q, q_total = _normalised(s)
    p, p_total = _normalised(t)
    overlap = torch.minimum(p, q).sum(-1)
    if temperature != 1.0:
        s, t = s / temperature, t / temperature
        q, q_total = _normalised(s)
        p, p_total = _normalised(t)
    log_z_ratio = (q_total / p_total).log().squeeze(-1)
    # A token of probability 0 adds nothing, also where its logit is −inf.
    values = torch.where(p > 0, p * (t - s), 0.0).sum(-1) + log_z_ratio
    student.copy_((q - p) / temperature)
    return Scores(values.clamp_min(0.0), overlap, agree)


def acceptance_kernel(
    student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
) -> Scores:
    """``acceptance`` in closed form: the gradient of −log Σ min(p, q) is (q·Σu − u)/Σ min(p, q).

    u is min(p, q) where that is the draft's, else 0.
    """
    s, t = wide(student), wide(teacher)
    s_max, t_max = s.amax(-1, keepdim=True), t.amax(-1, keepdim=True)
    agree = ((s + t).amax(-1) == (s_max + t_max).squeeze(-1)).float()
    s, t = s - s_max, t - t_max
    overlap = _overlap(s, t)[0].exp()
    if temperature != 1.0:
        s, t = s / temperature, t / temperature
    log_overlap, gradient = _overlap(s, t)
    student.copy_(gradient / temperature)
    return Scores(-log_overlap, overlap.clamp_max(1.0), agree)


def _overlap(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [R, V] with maximum 0: log Σ min(p, q), [R], and its negative's gradient by s.

    Scaled by a bound of the largest min(p, q), so that it stays finite where p and q underflow.
    """
    q, p = s.exp(), t.exp()
    q_total, p_total = q.sum(-1, keepdim=True), p.sum(-1, keepdim=True)
    scale = torch.minimum(s, t).amax(-1, keepdim=True)
    log_q, log_p = s - q_total.log(), t - p_total.log()
    w = (torch.minimum(log_q, log_p) - scale).exp()
    of_draft = torch.where(log_q <= log_p, w, 0.0)
    total, draft_total = w.sum(-1, keepdim=True), of_draft.sum(-1, keepdim=True)
    gradient = q * (draft_total / (q_total * total)) - of_draft * (1.0 / total)
    return (total.log() + scale).squeeze(-1).clamp_max(0.0), gradient


def jsd_kernel(
    student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
) -> Scores:
    """``jsd`` with β = ½ in closed form: the gradient is q·(g − Σ q·g) with g = ½ log q/m."""
    s, t = wide(student), wide(teacher)
    s_max, t_max = s.amax(-1, keepdim=True), t.amax(-1, keepdim=True)
    agree = ((s + t).amax(-1) == (s_max + t_max).squeeze(-1)).float()
    s, t = s - s_max, t - t_max
    q, q_total = _normalised(s)
    p, p_total = _normalised(t)
    overlap = torch.minimum(p, q).sum(-1)
    if temperature != 1.0:
        s, t = s / temperature, t / temperature
        q, q_total = _normalised(s)
        p, p_total = _normalised(t)
    # The smallest p + q would be 0 when halved, or where a device takes denormal numbers for 0.
    log_m = (p + q).clamp_min(torch.finfo(p.dtype).tiny).log() - math.log(2.0)
    # A token of probability 0 adds nothing, also where its logit is −inf.
    of_q = torch.where(q > 0, 0.5 * q * (s - q_total.log() - log_m), 0.0)
    of_p = torch.where(p > 0, 0.5 * p * (t - p_total.log() - log_m), 0.0)
    q_sum = of_q.sum(-1, keepdim=True)
    student.copy_((of_q - q * q_sum) / temperature)
    return Scores(of_p.sum(-1) + q_sum.squeeze(-1), overlap, agree)


def _normalised(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax of logits [R, V] whose maximum is 0, and the sum of their exponentials [R, 1]."""
    weights = logits.exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total, total


CLOSED_FORMS: dict[Divergence, Kernel] = {
    forward_kl: forward_kl_kernel,
    acceptance: acceptance_kernel,
    jsd: jsd_kernel,
}
"""What torch.compile makes of fewer passes over a row than of the definition's derivative."""


class ForwardKLKernel:
    """``forward_kl`` without a compiler, in buffers used again."""

    def __init__(self, rows: int, vocabulary_size: int, dtype: torch.dtype):
        accurate = torch.promote_types(dtype, torch.float32)
        self._buffers = torch.empty(5, rows, vocabulary_size, dtype=accurate)

    def __call__(
        self, student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
    ) -> Scores:
        s, t, p, q, scratch = (buffer[: student.shape[0]] for buffer in self._buffers)
        s.copy_(student)
        t.copy_(teacher)
        torch.softmax(s, -1, out=q)
        torch.softmax(t, -1, out=p)
        s_max, t_max = s.amax(-1), t.amax(-1)
        agree = (torch.add(s, t, out=scratch).amax(-1) == s_max + t_max).float()
        overlap = torch.minimum(p, q, out=scratch).sum(-1)
        if temperature != 1.0:
            torch.softmax(s.div_(temperature), -1, out=q)
            torch.softmax(t.div_(temperature), -1, out=p)
            s_max, t_max = s_max / temperature, t_max / temperature
        # log Z of a row, read off its largest token: log p(max) = max − log Z.
        log_z_ratio = (s_max - q.amax(-1).log()) - (t_max - p.amax(-1).log())
        values = torch.sub(t, s, out=scratch).mul_(p).sum(-1) + log_z_ratio
        if not bool(values.isfinite().all()):  # a logit of −inf made 0 · inf above
            values = forward_kl(s, t)
        student.copy_(q.sub_(p) if temperature == 1.0 else q.sub_(p).div_(temperature))
        return Scores(values.clamp_min_(0.0), overlap, agree)


def wide(logits: Tensor) -> Tensor:
    """fp32, or float64 if it already is."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
