"""Losses made of the acceptance probability of speculative decoding.

Shapes: T supervised tokens, V vocabulary; [T, V] ×2 → [T]. p teacher (target), q student (draft).
A drafted token is kept with probability alpha = Σ_x min(p, q) = 1 − TV(p, q)
(Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", section 3.2).
All are non-linear in p: they need the teacher's whole distribution, not samples of it.
"""

import math

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.divergence import (
    check_same_vocabulary,
    forward_kl,
    log_probabilities,
)


def alpha(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Σ_x min(p, q) in [0, 1]: the chance that the target keeps a token drafted here."""
    return log_alpha(student_logits, teacher_logits, temperature).exp()


def log_alpha(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """The log of alpha, made in log space so that it stays finite where alpha underflows fp32."""
    check_same_vocabulary(student_logits, teacher_logits)
    log_p = log_probabilities(teacher_logits, temperature)
    log_q = log_probabilities(student_logits, temperature)
    return torch.logsumexp(torch.minimum(log_p, log_q), dim=-1).clamp_max(0.0)


def total_variation(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0
) -> Tensor:
    """½ Σ|p − q| = 1 − alpha: the chance of a rejection.

    Its gradient dies where p and q do not overlap: ``lk`` and ``acceptance`` mend that.
    """
    check_same_vocabulary(student_logits, teacher_logits)
    p = log_probabilities(teacher_logits, temperature).exp()
    q = log_probabilities(student_logits, temperature).exp()
    return 0.5 * (p - q).abs().sum(-1)


def acceptance(student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """−log Σ_x min(p, q): total variation's gradient over alpha, so it also moves a poor draft.

    Samarin et al. 2026, "LK Losses: Direct Acceptance Rate Optimization for Speculative Decoding"
    (arXiv 2602.23881), the likelihood loss.
    """
    return -log_alpha(student_logits, teacher_logits, temperature)


def lk(
    student_logits: Tensor, teacher_logits: Tensor, temperature: float = 1.0, *, eta: float = 3.0
) -> Tensor:
    """λ·KL(p‖q) + (1 − λ)·TV(p, q), λ = exp(−eta·alpha) per token, without gradient through λ.

    KL while the pair disagrees, acceptance itself once it agrees. Samarin et al. 2026 (arXiv
    2602.23881), the hybrid loss, with the eta that did best there.
    """
    check_eta(eta)
    tv = total_variation(student_logits, teacher_logits, temperature)
    kl_weight = torch.exp(-eta * (1.0 - tv.detach()))
    kl = forward_kl(student_logits, teacher_logits, temperature)
    return kl_weight * kl + (1.0 - kl_weight) * tv


def check_eta(eta: float) -> None:
    if not 0.0 <= eta < math.inf:
        raise UserError(f"lk eta is {eta}; use 0 (KL alone) or more")
