"""What a config asks for: divergences by name, their options, and weighted sums of them.

Shapes: T supervised tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses import divergence

BY_NAME: dict[str, Callable[..., Tensor]] = {
    "forward_kl": divergence.forward_kl,
    "reverse_kl": divergence.reverse_kl,
    "jsd": divergence.jsd,
    "total_variation": divergence.total_variation,
    "acceptance": divergence.acceptance,
    "lk": divergence.lk,
}
"""f(student_logits [T, V], teacher_logits [T, V], temperature, log_total, **options) → [T]."""


@dataclass(frozen=True)
class Term:
    """weight · the divergence of this name. options: those of ``jsd`` (beta) and ``lk`` (eta)."""

    name: str
    weight: float = 1.0
    options: tuple[tuple[str, float], ...] = ()

    def __call__(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        temperature: float,
        log_total: Tensor | None = None,
    ) -> Tensor:
        """[T, V] ×2, and log_total [T] where these are not all ids → [T]."""
        definition = partial(BY_NAME[self.name], **dict(self.options))
        return self.weight * definition(student_logits, teacher_logits, temperature, log_total)


@dataclass(frozen=True)
class Mixture:
    """Σ weight · divergence(student, teacher) + label_weight · cross_entropy(student, labels).

    One divergence alone is a mixture of one term. Two of the same terms are equal, so that what is
    compiled for one serves the other. The hard-label term is always at temperature 1: a label is no
    softened teacher.
    """

    terms: tuple[Term, ...]
    label_weight: float = 0.0

    @classmethod
    def of(cls, weights: Mapping[str, float], *, beta: float = 0.5, eta: float = 3.0) -> "Mixture":
        """From ``{name: weight}``, in which ``cross_entropy`` may stand beside others.

        ``beta`` is that of jsd, ``eta`` that of lk; neither touches another name. What weighs 0 is
        left out.

        Raises:
            UserError: an unknown name, a weight or an option out of its range, or no divergence.
        """
        named = dict(weights)
        label_weight = named.pop("cross_entropy", 0.0)
        if not all(0 <= weight < math.inf for weight in (*named.values(), label_weight)):
            raise UserError(f"mixture {dict(weights)}: give finite weights, 0 or more")
        terms = [Term(name, weight, _options(name, beta, eta)) for name, weight in named.items()]
        kept = tuple(term for term in terms if term.weight)
        if not kept:
            raise UserError(f"mixture {dict(weights)} needs a divergence of a weight above 0")
        return cls(kept, label_weight)

    @property
    def name(self) -> str:
        """The divergence's name where it is one alone, as it is; else `a mixture`."""
        alone = len(self.terms) == 1 and self.terms[0].weight == 1.0 and not self.label_weight
        return self.terms[0].name if alone else "a mixture"

    def __call__(
        self,
        student_logits: Tensor,
        teacher_logits: Tensor,
        temperature: float = 1.0,
        labels: Tensor | None = None,
        log_total: Tensor | None = None,
    ) -> Tensor:
        """[T, V] ×2, and labels [T] if ``label_weight`` is not 0 → [T].

        log_total: [T] where these are not all of the teacher's ids; see ``divergence``.
        """
        self.check_labels(labels)
        total = torch.zeros_like(student_logits[..., 0], dtype=torch.float32)
        for term in self.terms:
            total = total + term(student_logits, teacher_logits, temperature, log_total)
        if labels is not None:
            total = total + self.label_weight * divergence.cross_entropy(student_logits, labels)
        return total

    def check_labels(self, labels: Tensor | None) -> None:
        """Raise UserError unless there are labels exactly when something weighs them."""
        if (labels is not None) != bool(self.label_weight):
            raise UserError("give labels exactly when the mixture has a cross_entropy weight")


def _options(name: str, beta: float, eta: float) -> tuple[tuple[str, float], ...]:
    if name not in BY_NAME:
        raise UserError(f"no divergence is called {name!r}; choose from {', '.join(BY_NAME)}")
    if name == "jsd":
        divergence.check_beta(beta)
        return (("beta", beta),)
    if name == "lk":
        divergence.check_eta(eta)
        return (("eta", eta),)
    return ()


FORWARD_KL = Mixture.of({"forward_kl": 1.0})
