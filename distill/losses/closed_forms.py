"""Losses and their gradients written out, where that takes fewer passes over a row than autograd.

Shapes: R rows (tokens), V vocabulary. See ``kernels`` for what a kernel does.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from distill.losses.acceptance import acceptance
from distill.losses.divergence import forward_kl, jsd
from distill.losses.kernels import Divergence, Kernel, Scores, wide

Form = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Logits s of the student and t of the teacher, [R, V], each row's maximum 0 → values [R] and their
gradient by s [R, V]. A token of probability 0 adds nothing, also where its logit is −inf."""


def _forward_kl(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    q, q_total = _softmax(s)
    p, p_total = _softmax(t)
    log_z_ratio = (q_total / p_total).log().squeeze(-1)
    values = torch.where(p > 0, p * (t - s), 0.0).sum(-1) + log_z_ratio
    return values.clamp_min(0.0), q - p


def _acceptance(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (q·Σu − u)/Σ min(p, q), u being min(p, q) where that is the draft's, else 0.

    All over a bound of the largest min(p, q): so it stays finite where p and q underflow.
    """
    q, p = s.exp(), t.exp()
    q_total, p_total = q.sum(-1, keepdim=True), p.sum(-1, keepdim=True)
    bound = torch.minimum(s, t).amax(-1, keepdim=True)
    log_q, log_p = s - q_total.log(), t - p_total.log()
    smaller = (torch.minimum(log_q, log_p) - bound).exp()
    u = torch.where(log_q <= log_p, smaller, 0.0)
    total, u_total = smaller.sum(-1, keepdim=True), u.sum(-1, keepdim=True)
    gradient = q * (u_total / (q_total * total)) - u * (1.0 / total)
    return -(total.log() + bound).squeeze(-1).clamp_max(0.0), gradient


def _jsd(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """At β = ½. Gradient q·(g − Σ q·g), with g = ½ log q/m."""
    q, q_total = _softmax(s)
    p, p_total = _softmax(t)
    # The smallest p + q would be 0 when halved, or where a device takes denormal numbers for 0.
    log_m = (p + q).clamp_min(torch.finfo(p.dtype).tiny).log() - math.log(2.0)
    of_q = torch.where(q > 0, 0.5 * q * (s - q_total.log() - log_m), 0.0)
    of_p = torch.where(p > 0, 0.5 * p * (t - p_total.log() - log_m), 0.0)
    q_sum = of_q.sum(-1, keepdim=True)
    return of_p.sum(-1) + q_sum.squeeze(-1), of_q - q * q_sum


def _softmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [R, V] whose maximum is 0, and the sum of their exponentials [R, 1]."""
    weights = logits.exp()
    total = weights.sum(-1, keepdim=True)
    return weights / total, total


def _kernel(form: Form) -> Kernel:
    def kernel(
        student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
    ) -> Scores:
        s, t = wide(student), wide(teacher)
        s_max, t_max = s.amax(-1, keepdim=True), t.amax(-1, keepdim=True)
        agree = ((s + t).amax(-1) == (s_max + t_max).squeeze(-1)).float()
        s, t = s - s_max, t - t_max
        values, gradient = form(s / temperature, t / temperature)
        if form is _acceptance and temperature == 1.0:
            overlap = (-values).exp()  # as the loss is defined: it need not be summed again
        else:
            overlap = torch.minimum(_softmax(t)[0], _softmax(s)[0]).sum(-1)
        student.copy_(gradient / temperature)
        return Scores(values, overlap, agree)

    return kernel


CLOSED_FORMS: dict[Divergence, Kernel] = {
    forward_kl: _kernel(_forward_kl),
    acceptance: _kernel(_acceptance),
    jsd: _kernel(_jsd),
}
"""For torch.compile: run eagerly, each of these steps would read and write memory."""


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
