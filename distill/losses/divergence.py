"""Divergences between the target's and the draft's next-token distributions.

Shapes: T supervised tokens, V vocabulary. ``student_logits`` and ``teacher_logits`` are [T, V],
results are [T], in nats. p is the teacher (target), q the student (draft), both
softmax(logits / temperature).

Every function returns the plain divergence of the two tempered distributions.

A drafted token is kept with probability alpha = Σ_x min(p, q) = 1 − TV(p, q) (Leviathan et al.
2023, "Fast Inference from Transformers via Speculative Decoding", section 3.2).
``total_variation``, ``acceptance`` and ``lk`` are made of it; they are non-linear in p, so they
need the teacher's whole distribution and not samples of it.

A token of logit −inf has probability zero and adds nothing where the weighting side is zero; where
the true divergence is infinite the result is +inf. Half precision is read, the maths runs in fp32
(float64 stays float64).

Given ``log_total`` [T], the log of the sum of the teacher's e^logit over all ids, the V ids are
only those that the draft can draw: p adds up to m ≤ 1 over them, q to 1, and q is zero on the
others. What the teacher gives those is never shared out again. The temperature is then 1.
"""

import math

import torch
from torch import Tensor

from distill.errors import UserError


def log_probabilities(
    logits: Tensor, temperature: float = 1.0, log_total: Tensor | None = None
) -> Tensor:
    """The log of softmax(logits / temperature) over the last axis, in fp32 or better.

    log_total: of all ids, without the last axis, where these are only some; at temperature 1.
    """
    check_temperature(temperature)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    if log_total is not None:
        check_unsoftened(temperature)
        return wide - log_total.to(wide.dtype).unsqueeze(-1)
    return torch.log_softmax(wide if temperature == 1.0 else wide / temperature, dim=-1)


def check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise UserError(f"temperature is {temperature}; a divergence needs a temperature above 0")


def check_unsoftened(temperature: float) -> None:
    """Refuse to soften some of a teacher's ids: the total over all of them is of temperature 1."""
    if temperature != 1.0:
        raise UserError(
            f"temperature is {temperature}, and the signal of a reduced vocabulary is of "
            "temperature 1; use temperature=1, or a draft with the whole vocabulary"
        )


def check_beta(beta: float) -> None:
    if not 0.0 < beta < 1.0:
        raise UserError(
            f"jsd beta is {beta}; use 0 < beta < 1, or forward_kl / reverse_kl for the ends"
        )


def check_same_vocabulary(student_logits: Tensor, teacher_logits: Tensor) -> None:
    """Refuse logits of different widths: zeros in the narrower would be given real mass."""
    if student_logits.shape != teacher_logits.shape:
        raise UserError(
            f"student logits {tuple(student_logits.shape)} and teacher logits "
            f"{tuple(teacher_logits.shape)} differ; slice both to the common real ids"
        )


def expectation(probability: Tensor, log_ratio: Tensor) -> Tensor:
    """Σ_x probability · log_ratio with 0 · (±inf or nan) = 0, in value and in gradient: [T]."""
    present = probability > 0
    return (probability * torch.where(present, log_ratio, 0.0)).sum(-1)


def forward_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """KL(p‖q) = Σ p log(p/q), teacher first: covers all the teacher's mass. [T, V] ×2 → [T].

    Bounds acceptance from below (Pinsker): alpha ≥ 1 − sqrt(KL/2). Gradient by the student's
    logits: (q − p)/temperature.

    With ``log_total``, Σ p log(p/q) − m log m = m · KL(p/m‖q), of gradient m·q − p: what the draft
    can change. Where m < 1 the rest is infinite whatever the draft does, and is left out.
    """
    check_same_vocabulary(student_logits, teacher_logits)
    log_p = log_probabilities(teacher_logits, temperature, log_total)
    log_q = log_probabilities(student_logits, temperature)
    value = expectation(log_p.exp(), log_p - log_q)
    if log_total is None:
        return value
    mass = log_p.exp().sum(-1)
    return value - torch.xlogy(mass, mass)


def reverse_kl(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """KL(q‖p) = Σ q log(q/p), student first: seeks the teacher's modes. [T, V] ×2 → [T].

    Infinite, with no gradient to follow, where the student has mass on a token of teacher logit
    −inf: mask both sides alike.
    """
    check_same_vocabulary(student_logits, teacher_logits)
    log_p = log_probabilities(teacher_logits, temperature, log_total)
    log_q = log_probabilities(student_logits, temperature)
    return expectation(log_q.exp(), log_q - log_p)


def jsd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
    *,
    beta: float = 0.5,
) -> Tensor:
    """β·KL(p‖m) + (1 − β)·KL(q‖m), m = βp + (1 − β)q, 0 < β < 1. [T, V] ×2 → [T].

    Agarwal et al. 2024, "On-Policy Distillation of Language Models" (GKD), section 2. At most the
    entropy of a β coin (log 2 at β = ½). Divided by β it tends to KL(p‖q) as β → 0, divided by
    1 − β to KL(q‖p) as β → 1.
    """
    check_beta(beta)
    check_same_vocabulary(student_logits, teacher_logits)
    log_p = log_probabilities(teacher_logits, temperature, log_total)
    log_q = log_probabilities(student_logits, temperature)
    p, q = log_p.exp(), log_q.exp()
    # logaddexp(−inf, −inf) has a nan gradient; such tokens weigh nothing on either side.
    nowhere = torch.isneginf(log_p) & torch.isneginf(log_q)
    log_p, log_q = log_p.masked_fill(nowhere, 0.0), log_q.masked_fill(nowhere, 0.0)
    log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log1p(-beta))
    inside = beta * expectation(p, log_p - log_m) + (1 - beta) * expectation(q, log_q - log_m)
    # Outside the kept ids m is βp, so that log p/m is −log β.
    return inside if log_total is None else inside - beta * math.log(beta) * (1.0 - p.sum(-1))


def cross_entropy(student_logits: Tensor, token_ids: Tensor, temperature: float = 1.0) -> Tensor:
    """−log q(token): the hard-label loss. [T, V], [T] → [T]."""
    log_q = log_probabilities(student_logits, temperature)
    return -log_q.gather(-1, token_ids.long().unsqueeze(-1)).squeeze(-1)


def alpha(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """Σ_x min(p, q) in [0, 1]: the chance that the target keeps a token drafted here."""
    return log_alpha(student_logits, teacher_logits, temperature, log_total).exp()


def log_alpha(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """The log of alpha, made in log space so that it stays finite where alpha underflows fp32."""
    check_same_vocabulary(student_logits, teacher_logits)
    log_p = log_probabilities(teacher_logits, temperature, log_total)
    log_q = log_probabilities(student_logits, temperature)
    return torch.logsumexp(torch.minimum(log_p, log_q), dim=-1).clamp_max(0.0)


def total_variation(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """½ Σ|p − q| = 1 − alpha: the chance of a rejection.

    Its gradient dies where p and q do not overlap: ``lk`` and ``acceptance`` mend that.
    """
    check_same_vocabulary(student_logits, teacher_logits)
    p = log_probabilities(teacher_logits, temperature, log_total).exp()
    q = log_probabilities(student_logits, temperature).exp()
    inside = 0.5 * (p - q).abs().sum(-1)
    return inside if log_total is None else inside + 0.5 * (1.0 - p.sum(-1))


def acceptance(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
) -> Tensor:
    """−log Σ_x min(p, q): total variation's gradient over alpha, so it also moves a poor draft.

    Samarin et al. 2026, "LK Losses: Direct Acceptance Rate Optimization for Speculative Decoding"
    (arXiv 2602.23881), the likelihood loss.
    """
    return -log_alpha(student_logits, teacher_logits, temperature, log_total)


def lk(
    student_logits: Tensor,
    teacher_logits: Tensor,
    temperature: float = 1.0,
    log_total: Tensor | None = None,
    *,
    eta: float = 3.0,
) -> Tensor:
    """λ·KL(p‖q) + (1 − λ)·TV(p, q), λ = exp(−eta·alpha) per token, without gradient through λ.

    KL while the pair disagrees, acceptance itself once it agrees. Samarin et al. 2026 (arXiv
    2602.23881), the hybrid loss, with the eta that did best there.
    """
    check_eta(eta)
    tv = total_variation(student_logits, teacher_logits, temperature, log_total)
    kl_weight = torch.exp(-eta * (1.0 - tv.detach()))
    kl = forward_kl(student_logits, teacher_logits, temperature, log_total)
    return kl_weight * kl + (1.0 - kl_weight) * tv


def check_eta(eta: float) -> None:
    if not 0.0 <= eta < math.inf:
        raise UserError(f"lk eta is {eta}; use 0 (KL alone) or more")
