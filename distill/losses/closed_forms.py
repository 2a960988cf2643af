"""Divergences with their gradients written out, for torch.compile to make one loop over rows of.

Shapes: R rows (tokens), V vocabulary. p teacher, q student.

The compiler keeps all passes over a row together, and with them the row in the processor's cache,
as long as nothing of one number per row is computed between two of them. So the compiled part
gives sums over rows, and what is made of these (a logarithm, an average) comes after it.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from distill.losses.divergence import (
    acceptance,
    check_beta,
    check_eta,
    expectation,
    forward_kl,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)
from distill.losses.kernels import Divergence, Kernel, Scores, autograd_kernel, wide
from distill.losses.mixture import takes_labels


class Softmax(NamedTuple):
    """logits [R, V], of which a row's largest is 0; their softmax; Σ e^logits [R, 1]."""

    logits: Tensor
    probabilities: Tensor
    total: Tensor


class Form(NamedTuple):
    """A divergence in two steps.

    rows(q, p): the gradient by the student's logits [R, V], and sums [R, 1]; a mixture's nest.
    values(log_z, *sums): the losses [R, 1]; log_z is the log of q's total over p's, so that
    log q − log p = q.logits − p.logits − log_z.
    """

    rows: Callable[..., tuple[Tensor, tuple[Any, ...]]]
    values: Callable[..., Tensor]


def closed_form(divergence: Divergence) -> Form | None:
    """Of a divergence of ``distill.losses``, if it has one.

    So have a ``partial`` of one with its beta or eta, and a ``Mixture`` of them without labels.
    """
    terms = getattr(divergence, "terms", None)
    if terms is not None:
        return None if takes_labels(divergence) else _mixture(terms)
    given: dict[str, float] = getattr(divergence, "keywords", {})  # of a partial
    make = _FORMS.get(getattr(divergence, "func", divergence))
    return make(**given) if make is not None and given.keys() <= {"beta", "eta"} else None


def closed_kernel(
    form: Form, definition: Divergence, compiler: Callable[[Callable[..., Any]], Any]
) -> Kernel:
    """The kernel of ``form``, whose step over rows ``compiler`` has made.

    If a loss does not come out finite, these rows are scored by the ``definition`` in float64,
    which is slower and holds where probabilities underflow or are zero.
    """
    of_rows = compiler(partial(_score_rows, form))

    def kernel(
        student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
    ) -> Scores:
        gradient, found = of_rows(student, teacher, temperature)
        q_total, p_total, overlap, nearest, sums = found
        values = form.values((q_total / p_total).log(), *sums).squeeze(-1)
        if not bool(values.isfinite().all()):
            exact = student.double()
            scores = autograd_kernel(definition)(exact, teacher.double(), temperature, labels)
            student.copy_(exact)
            return Scores(*(part.to(values.dtype) for part in scores))
        student.copy_(gradient)
        return Scores(
            values.clamp_min(0.0), overlap.squeeze(-1), (nearest == 0).squeeze(-1).float()
        )

    return kernel


def _score_rows(
    form: Form, student: Tensor, teacher: Tensor, temperature: float
) -> tuple[Tensor, tuple[Any, ...]]:
    """The gradient by the student's logits, and sums over rows, [R, 1] each."""
    s, t = wide(student), wide(teacher)
    plain = q, p = _softmax(s), _softmax(t)
    nearest = (q.logits + p.logits).amax(-1, keepdim=True)
    if temperature != 1.0:
        q, p = (_of_shifted(side.logits / temperature) for side in plain)
    gradient, sums = form.rows(q, p)
    overlap = _overlap(*plain)
    scaled = gradient if temperature == 1.0 else gradient / temperature
    return scaled.to(student.dtype), (q.total, p.total, overlap, nearest, sums)


def _softmax(logits: Tensor) -> Softmax:
    return _of_shifted(logits - logits.amax(-1, keepdim=True))


def _of_shifted(logits: Tensor) -> Softmax:
    weights = logits.exp()
    total = weights.sum(-1, keepdim=True)
    return Softmax(logits, weights * (1.0 / total), total)


def _overlap(q: Softmax, p: Softmax) -> Tensor:
    """Alpha: Σ min(p, q)."""
    return torch.minimum(q.probabilities, p.probabilities).sum(-1, keepdim=True)


def _mean(probability: Tensor, value: Tensor) -> Tensor:
    return expectation(probability, value).unsqueeze(-1)


def _through_softmax(q: Softmax, by_q: Tensor) -> Tensor:
    """The gradient by q's logits from the one by q: q·(g − Σ q·g)."""
    return q.probabilities * (by_q - _mean(q.probabilities, by_q))


def _forward_kl() -> Form:
    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        cross = _mean(p.probabilities, p.logits - q.logits)
        return q.probabilities - p.probabilities, (cross,)

    return Form(rows, torch.add)


def _reverse_kl() -> Form:
    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        gap = torch.where(q.probabilities > 0, q.logits - p.logits, 0.0)
        return _through_softmax(q, gap), (_mean(q.probabilities, gap),)

    def values(log_z: Tensor, mean: Tensor) -> Tensor:
        return mean - log_z

    return Form(rows, values)


def _jsd(beta: float = 0.5) -> Form:
    """One logarithm per token: log p/m is log q/m + log p/q.

    A token that q leaves nothing of has log p/m = −log β.
    """
    check_beta(beta)

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        m = beta * p.probabilities + (1 - beta) * q.probabilities
        there = q.probabilities > torch.finfo(m.dtype).tiny
        of_q = torch.where(there, (q.probabilities / m).log(), 0.0)
        of_p = torch.where(there, of_q + (p.logits - q.logits), 0.0)
        covered = torch.where(there, p.probabilities, 0.0).sum(-1, keepdim=True)
        gradient = (1 - beta) * _through_softmax(q, of_q)
        return gradient, (_mean(q.probabilities, of_q), _mean(p.probabilities, of_p), covered)

    def values(log_z: Tensor, of_q: Tensor, of_p: Tensor, covered: Tensor) -> Tensor:
        of_p = of_p + covered * log_z - (1.0 - covered) * math.log(beta)
        return beta * of_p + (1 - beta) * of_q

    return Form(rows, values)


def _total_variation() -> Form:
    def values(_: Tensor, distance: Tensor) -> Tensor:
        return distance

    return Form(_variation, values)


def _variation(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
    difference = q.probabilities - p.probabilities
    distance = 0.5 * difference.abs().sum(-1, keepdim=True)
    return _through_softmax(q, 0.5 * difference.sign()), (distance,)


def _acceptance() -> Form:
    """Gradient (q·Σu − u)/Σ min(p, q), u being min(p, q) where that is the draft's, else 0."""

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        u = torch.where(q.probabilities <= p.probabilities, q.probabilities, 0.0)
        overlap = _overlap(q, p)
        ours = q.probabilities * u.sum(-1, keepdim=True) - u
        return ours * (1.0 / overlap), (overlap,)

    def values(_: Tensor, overlap: Tensor) -> Tensor:
        # Sums of what lost its digits to underflow, and their inverses, are no numbers to use.
        lost = torch.finfo(overlap.dtype).tiny / torch.finfo(overlap.dtype).eps
        return torch.where(overlap > lost, -overlap.log(), torch.inf)

    return Form(rows, values)


def _lk(eta: float = 3.0) -> Form:
    check_eta(eta)

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        of_kl = q.probabilities - p.probabilities
        of_tv, (distance,) = _variation(q, p)
        gradient = of_tv + torch.exp(-eta * (1.0 - distance)) * (of_kl - of_tv)
        return gradient, (distance, _mean(p.probabilities, p.logits - q.logits))

    def values(log_z: Tensor, distance: Tensor, cross: Tensor) -> Tensor:
        kl_weight = torch.exp(-eta * (1.0 - distance))
        return kl_weight * (cross + log_z) + (1.0 - kl_weight) * distance

    return Form(rows, values)


def _mixture(mixed: tuple[tuple[Divergence, float], ...]) -> Form | None:
    parts = [(closed_form(divergence), weight) for divergence, weight in mixed]
    terms = [(form, weight) for form, weight in parts if form is not None]
    if len(terms) < len(parts):
        return None

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Any, ...]]:
        scored = [(form.rows(q, p), weight) for form, weight in terms]
        gradient = sum(weight * gradient for (gradient, _), weight in scored)
        return cast(Tensor, gradient), tuple(sums for (_, sums), _ in scored)

    def values(log_z: Tensor, *sums: tuple[Tensor, ...]) -> Tensor:
        each = zip(terms, sums, strict=True)
        return cast(Tensor, sum(weight * form.values(log_z, *own) for (form, weight), own in each))

    return Form(rows, values)


_FORMS: dict[Any, Callable[..., Form]] = {
    forward_kl: _forward_kl,
    reverse_kl: _reverse_kl,
    jsd: _jsd,
    total_variation: _total_variation,
    acceptance: _acceptance,
    lk: _lk,
}
