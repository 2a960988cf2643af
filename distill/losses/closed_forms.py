"""Divergences with their gradients written out, for torch.compile to make one loop over rows of.

Shapes: R rows (tokens), V vocabulary. p teacher, q student.

The compiler keeps all passes over a row together, and with them the row in the processor's cache,
as long as nothing of one number per row is computed between two of them. So the compiled part
gives sums over rows, and what is made of these (a logarithm, an average) comes after it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from distill.losses.divergence import check_beta, check_eta, expectation
from distill.losses.mixture import Mixture


class Softmax(NamedTuple):
    """logits [R, V], of which a row's largest is 0; their softmax; Σ e^logits [R, 1].

    Of a teacher whose row is only some of its ids, total is over all of them, and ``mass`` [R, 1]
    is what the probabilities then add up to. None: they add up to 1.
    """

    logits: Tensor
    probabilities: Tensor
    total: Tensor
    mass: Tensor | None = None


class Form(NamedTuple):
    """A divergence in two steps.

    rows(q, p): the gradient by the student's logits [R, V], and sums [R, 1]; a mixture's nest.
    values(log_z, mass, *sums): the losses [R, 1]; log_z is the log of q's total over p's, so that
    log q − log p = q.logits − p.logits − log_z; mass [R, 1] is Σ p.
    """

    rows: Callable[..., tuple[Tensor, tuple[Any, ...]]]
    values: Callable[..., Tensor]


def closed_form(mixture: Mixture) -> Form | None:
    """The closed form of a mixture; None with hard labels, which have none."""
    if mixture.label_weight:
        return None
    terms = [(_FORMS[term.name](**dict(term.options)), term.weight) for term in mixture.terms]
    alone = len(terms) == 1 and terms[0][1] == 1.0
    return terms[0][0] if alone else _weighted_sum(terms)


def softmax(logits: Tensor, log_total: Tensor | None = None) -> Softmax:
    """Of logits [R, V], shifted so that nothing overflows.

    log_total [R]: of all ids' logits where these are only some of them.
    """
    largest = logits.amax(-1, keepdim=True)
    if log_total is None:
        return softmax_of_shifted(logits - largest)
    shifted = logits - largest
    weights = shifted.exp()
    total = (log_total.to(logits.dtype).unsqueeze(-1) - largest).exp()
    probabilities = weights * (1.0 / total)
    return Softmax(shifted, probabilities, total, probabilities.sum(-1, keepdim=True))


def softmax_of_shifted(logits: Tensor) -> Softmax:
    """Of logits [R, V] whose largest of a row is 0."""
    weights = logits.exp()
    total = weights.sum(-1, keepdim=True)
    return Softmax(logits, weights * (1.0 / total), total)


def overlap(q: Softmax, p: Softmax) -> Tensor:
    """Σ min(p, q), which is alpha: [R, 1]."""
    return torch.minimum(q.probabilities, p.probabilities).sum(-1, keepdim=True)


def _mean(probability: Tensor, value: Tensor) -> Tensor:
    """Σ probability · value of each row, [R, 1]."""
    return expectation(probability, value).unsqueeze(-1)


def _through_softmax(q: Softmax, by_q: Tensor) -> Tensor:
    """The gradient by q's logits from the one by q: q·(g − Σ q·g)."""
    return q.probabilities * (by_q - _mean(q.probabilities, by_q))


def _toward(q: Softmax, p: Softmax) -> Tensor:
    """The gradient of forward KL by q's logits, Σp · q − p; in a full row Σp is 1."""
    ours = q.probabilities if p.mass is None else p.mass * q.probabilities
    return ours - p.probabilities


def _forward_kl() -> Form:
    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        return _toward(q, p), (_mean(p.probabilities, p.logits - q.logits),)

    return Form(rows, _forward_kl_value)


def _forward_kl_value(log_z: Tensor, mass: Tensor, cross: Tensor) -> Tensor:
    return cross + mass * (log_z - mass.log())


def _reverse_kl() -> Form:
    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        gap = torch.where(q.probabilities > 0, q.logits - p.logits, 0.0)
        return _through_softmax(q, gap), (_mean(q.probabilities, gap),)

    def values(log_z: Tensor, _: Tensor, mean: Tensor) -> Tensor:
        return mean - log_z

    return Form(rows, values)


def _jsd(beta: float) -> Form:
    """One logarithm per token: log p/m is log q/m + log p/q.

    A token that q leaves nothing of has log p/m = −log β, and so have all outside the row.
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

    def values(log_z: Tensor, _: Tensor, of_q: Tensor, of_p: Tensor, covered: Tensor) -> Tensor:
        of_p = of_p + covered * log_z - (1.0 - covered) * math.log(beta)
        return beta * of_p + (1 - beta) * of_q

    return Form(rows, values)


def _total_variation() -> Form:
    def values(_: Tensor, __: Tensor, distance: Tensor) -> Tensor:
        return distance

    return Form(_variation, values)


def _variation(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
    difference = q.probabilities - p.probabilities
    distance = 0.5 * difference.abs().sum(-1, keepdim=True)
    if p.mass is not None:
        distance = distance + 0.5 * (1.0 - p.mass)
    return _through_softmax(q, 0.5 * difference.sign()), (distance,)


def _acceptance() -> Form:
    """Gradient (q·Σu − u)/Σ min(p, q), u being min(p, q) where that is the draft's, else 0."""

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        u = torch.where(q.probabilities <= p.probabilities, q.probabilities, 0.0)
        kept = overlap(q, p)
        ours = q.probabilities * u.sum(-1, keepdim=True) - u
        return ours * (1.0 / kept), (kept,)

    def values(_: Tensor, __: Tensor, kept: Tensor) -> Tensor:
        # Sums of what lost its digits to underflow, and their inverses, are no numbers to use.
        lost = torch.finfo(kept.dtype).tiny / torch.finfo(kept.dtype).eps
        return torch.where(kept > lost, -kept.log(), torch.inf)

    return Form(rows, values)


def _lk(eta: float) -> Form:
    check_eta(eta)

    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Tensor, ...]]:
        of_kl = _toward(q, p)
        of_tv, (distance,) = _variation(q, p)
        gradient = of_tv + torch.exp(-eta * (1.0 - distance)) * (of_kl - of_tv)
        return gradient, (distance, _mean(p.probabilities, p.logits - q.logits))

    def values(log_z: Tensor, mass: Tensor, distance: Tensor, cross: Tensor) -> Tensor:
        kl_weight = torch.exp(-eta * (1.0 - distance))
        kl = _forward_kl_value(log_z, mass, cross)
        return kl_weight * kl + (1.0 - kl_weight) * distance

    return Form(rows, values)


def _weighted_sum(terms: list[tuple[Form, float]]) -> Form:
    def rows(q: Softmax, p: Softmax) -> tuple[Tensor, tuple[Any, ...]]:
        scored = [(form.rows(q, p), weight) for form, weight in terms]
        gradient = sum(weight * gradient for (gradient, _), weight in scored)
        return cast(Tensor, gradient), tuple(sums for (_, sums), _ in scored)

    def values(log_z: Tensor, mass: Tensor, *sums: tuple[Tensor, ...]) -> Tensor:
        each = zip(terms, sums, strict=True)
        return cast(Tensor, sum(w * form.values(log_z, mass, *own) for (form, w), own in each))

    return Form(rows, values)


_FORMS: dict[str, Callable[..., Form]] = {
    "forward_kl": _forward_kl,
    "reverse_kl": _reverse_kl,
    "jsd": _jsd,
    "total_variation": _total_variation,
    "acceptance": _acceptance,
    "lk": _lk,
}
"""By the names of ``mixture.BY_NAME``, called with the same options."""
