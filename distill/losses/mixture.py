"""Divergences by name, and weighted mixtures of them, as a config writes them.

Shapes: T supervised tokens, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.divergence import (
    acceptance,
    check_beta,
    check_eta,
    cross_entropy,
    forward_kl,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)
from distill.losses.kernels import Divergence

BY_NAME: dict[str, Divergence] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd": jsd,
    "total_variation": total_variation,
    "acceptance": acceptance,
    "lk": lk,
}


@dataclass(frozen=True)
class Mixture:
    """Σ weight · divergence(student, teacher) + label_weight · cross_entropy(student, labels).

    The hard-label term is always at temperature 1: a label is no softened teacher.
    """

    terms: tuple[tuple[Divergence, float], ...]
    label_weight: float = 0.0

    def __call__(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        temperature: float = 1.0,
        labels: Tensor | None = None,
    ) -> Tensor:
        """[T, V] ×2, and labels [T] if ``label_weight`` is not 0 → [T]."""
        check_labels(self, labels)
        total = torch.zeros_like(student_logits[..., 0], dtype=torch.float32)
        for divergence, weight in self.terms:
            total = total + weight * divergence(student_logits, teacher_logits, temperature)
        if labels is not None:
            total = total + self.label_weight * cross_entropy(student_logits, labels)
        return total


def takes_labels(divergence: Divergence) -> bool:
    """Whether its fourth argument are the next tokens' ids."""
    return bool(getattr(divergence, "label_weight", 0.0))


def check_labels(divergence: Divergence, labels: Tensor | None) -> None:
    if (labels is not None) != takes_labels(divergence):
        raise UserError("give labels exactly when the mixture has a cross_entropy weight")


def as_divergence(
    spec: str | Mapping[str, float] | Divergence, *, beta: float = 0.5, eta: float = 3.0
) -> Divergence:
    """A divergence from its name, from ``{name: weight}``, or as it is.

    ``beta`` is jsd's, ``eta`` lk's, where they are meant by name. ``cross_entropy`` may stand in
    the mapping beside others; what weighs 0 is left out.
    """
    match spec:
        case str():
            return _named(spec, beta, eta)
        case Mapping():
            return _mixture(spec, beta, eta)
        case _:
            return spec


def _mixture(spec: Mapping[str, float], beta: float, eta: float) -> Divergence:
    weights = dict(spec)
    label_weight = weights.pop("cross_entropy", 0.0)
    if not all(0 <= weight < math.inf for weight in (*weights.values(), label_weight)):
        raise UserError(f"mixture {dict(spec)}: give finite weights, 0 or more")
    named = [(_named(name, beta, eta), weight) for name, weight in weights.items()]
    terms = tuple((divergence, weight) for divergence, weight in named if weight)
    if not terms:
        raise UserError(f"mixture {dict(spec)} needs a divergence of a weight above 0")
    # A mixture of one is that one: its closed form, where it has one, stays in use.
    alone = len(terms) == 1 and terms[0][1] == 1.0 and not label_weight
    return terms[0][0] if alone else Mixture(terms, label_weight)


@cache
def _named(name: str, beta: float, eta: float) -> Divergence:
    """Always the same object for the same three, so that it is compiled once."""
    if name not in BY_NAME:
        raise UserError(f"no divergence is called {name!r}; choose from {', '.join(BY_NAME)}")
    if name == "jsd" and beta != 0.5:
        check_beta(beta)
        return partial(jsd, beta=beta)
    if name == "lk" and eta != 3.0:
        check_eta(eta)
        return partial(lk, eta=eta)
    return BY_NAME[name]
