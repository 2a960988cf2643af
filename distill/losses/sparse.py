"""Losses against a teacher of which only part was kept: its k likeliest tokens, or random draws.

Shapes: T supervised tokens, V vocabulary, K kept tokens, N draws. p teacher, q student, both at the
temperature at which the signal was taken: to change it later would need the whole row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.divergence import alpha, expectation, log_probabilities
from distill.losses.fused import BLOCK_ROWS
from distill.losses.kernels import Scores, TokenLoss, gradient_and_values
from distill.losses.mixture import FORWARD_KL, Mixture


@dataclass(frozen=True)
class TopK:
    """The K likeliest tokens: distinct ids and their log p [T, K], log of the rest's mass [T]."""

    ids: Tensor
    log_probs: Tensor
    log_tail: Tensor
    temperature: float = 1.0

    def take(self, index: Tensor | slice) -> "TopK":
        return TopK(self.ids[index], self.log_probs[index], self.log_tail[index], self.temperature)

    @property
    def shape(self) -> tuple[int, int | None]:
        return len(self.ids), None

    def check(self, divergence: Mixture) -> None:
        """Any divergence of the kept tokens and a bucket for the rest, but no hard label."""
        check_unlabelled(divergence)

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> "SparseScorer":
        return SparseScorer(self, loss.divergence)

    def values(self, student_logits: Tensor, divergence: Mixture) -> Tensor:
        """[T, V] → [T]."""
        return top_k_divergence(student_logits, self, divergence)

    def alpha(self, student_logits: Tensor) -> Tensor:
        """An upper bound of Σ min(p, q): the tail is one bucket. [T, V] → [T]."""
        return alpha(*buckets(student_logits, self))

    def likeliest(self) -> Tensor:
        """The teacher's likeliest id, [T]."""
        return _at_largest(self.ids, self.log_probs)


@dataclass(frozen=True)
class Sampled:
    """Draws from p: ids, weights, log p of the ids, all [T, N]; E Σ weight·f(id) = Σ_x p(x) f(x).

    Plain draws weigh 1/N; a token drawn c times may stand once with c/N. Slots of weight 0 are
    padding.
    """

    ids: Tensor
    weights: Tensor
    log_probs: Tensor
    temperature: float = 1.0

    def take(self, index: Tensor | slice) -> "Sampled":
        return Sampled(
            self.ids[index], self.weights[index], self.log_probs[index], self.temperature
        )

    @property
    def shape(self) -> tuple[int, int | None]:
        return len(self.ids), None

    def check(self, divergence: Mixture) -> None:
        """Forward KL alone: over samples any other divergence is biased."""
        check_sampled(divergence)
        check_unlabelled(divergence)

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> "SparseScorer":
        return SparseScorer(self, loss.divergence)

    def values(self, student_logits: Tensor, divergence: Mixture) -> Tensor:
        """Unbiased. [T, V] → [T]."""
        return sampled_divergence(student_logits, self, divergence)

    def alpha(self, student_logits: Tensor) -> Tensor:
        """An unbiased estimate of Σ min(p, q): [T, V] → [T]."""
        return sampled_alpha(student_logits, self)

    def likeliest(self) -> Tensor:
        """The likeliest id that was drawn, [T]."""
        return _at_largest(self.ids, self.log_probs.masked_fill(self.weights == 0, -torch.inf))


def keep_top_k(teacher_logits: Tensor, k: int, temperature: float = 1.0) -> TopK:
    """The signal of the k likeliest tokens of each row: [T, V] → K = k."""
    log_p = log_probabilities(teacher_logits, temperature)
    kept, ids = log_p.topk(k, dim=-1)
    rest = log_p.scatter(-1, ids, -torch.inf)
    return TopK(ids, kept, rest.logsumexp(-1), temperature)


def draw(
    teacher_logits: Tensor,
    num_draws: int,
    temperature: float = 1.0,
    generator: torch.Generator | None = None,
    *,
    proposal_temperature: float = 1.0,
) -> Sampled:
    """``num_draws`` independent draws from r ∝ p^(1/proposal_temperature): [T, V] → N = num_draws.

    A draw weighs p/(r · num_draws), and is not normalised again: that would bias the sum.
    Anshumann et al. 2025, "Sparse Logit Sampling: Accelerating Knowledge Distillation in LLMs".
    """
    log_p = log_probabilities(teacher_logits, temperature)
    log_r = log_probabilities(log_p, proposal_temperature)
    ids = torch.multinomial(log_r.exp(), num_draws, replacement=True, generator=generator)
    kept = log_p.gather(-1, ids)
    weights = (kept - log_r.gather(-1, ids)).exp() / num_draws
    return Sampled(ids, weights, kept, temperature)


def top_k_divergence(
    student_logits: Tensor, signal: TopK, divergence: Mixture = FORWARD_KL
) -> Tensor:
    """A divergence of p and q over K + 1 buckets, the last holding all other tokens. [T, V] → [T].

    Merging tokens only lowers a divergence (data processing): a lower bound of the full one, never
    negative, equal at K = V. Without the tail's bucket the sum may fall below zero, and the student
    is rewarded for taking mass out of the tail.
    """
    student, teacher = buckets(student_logits, signal)
    # Log-probabilities are logits: times t, then softened by t, they are themselves again.
    t = signal.temperature
    return divergence(student * t, teacher * t, t)


def buckets(student_logits: Tensor, signal: TopK) -> tuple[Tensor, Tensor]:
    """Student and teacher log-probabilities of the kept tokens and the rest: 2 × [T, K + 1].

    At K = V there is no rest: 2 × [T, V].
    """
    log_q = log_probabilities(student_logits, signal.temperature)
    ids = signal.ids.long()
    kept = log_q.gather(-1, ids)
    log_p = signal.log_probs.to(log_q.dtype)
    if ids.shape[-1] == log_q.shape[-1]:
        return kept, log_p
    rest = _log_total(log_q.scatter(-1, ids, -torch.inf))
    tail = signal.log_tail.to(log_q.dtype).unsqueeze(-1)
    return torch.cat([kept, rest], -1), torch.cat([log_p, tail], -1)


def _log_total(log_masses: Tensor) -> Tensor:
    """The log of their sum, [T, 1].

    Where none is above −inf, the gradient would be nan; filled with what it is, a row has none.
    """
    nothing = torch.isneginf(log_masses).all(-1, keepdim=True)
    return log_masses.masked_fill(nothing, -torch.inf).logsumexp(-1, keepdim=True)


def sampled_divergence(
    student_logits: Tensor, signal: Sampled, divergence: Mixture = FORWARD_KL
) -> Tensor:
    """Unbiased estimate of KL(p‖q) = E_p[log p − log q] and of its gradient. [T, V] → [T].

    May be negative.

    Raises:
        UserError: any other divergence.
    """
    check_sampled(divergence)
    log_q = log_probabilities(student_logits, signal.temperature).gather(-1, signal.ids.long())
    return expectation(signal.weights.to(log_q.dtype), signal.log_probs.to(log_q.dtype) - log_q)


def check_sampled(divergence: Mixture) -> None:
    """Refuse a sampled teacher for all but forward KL, whose gradient alone is linear in p."""
    if divergence != FORWARD_KL:
        raise UserError(
            f"{divergence.name} is not linear in the teacher's probabilities, so over sampled "
            "tokens it is biased; use forward_kl alone, or a top_k, hidden or live signal"
        )


def check_unlabelled(divergence: Mixture) -> None:
    """Refuse a hard-label term beside a teacher of which only a part was kept."""
    if divergence.label_weight:
        raise UserError(
            "a mixture with cross_entropy needs the whole distribution: use signal=hidden or "
            "signal=live"
        )


def sampled_alpha(student_logits: Tensor, signal: Sampled) -> Tensor:
    """E_p[min(1, q/p)] = Σ min(p, q), an unbiased estimate of alpha: [T, V] → [T]."""
    log_q = log_probabilities(student_logits, signal.temperature).gather(-1, signal.ids.long())
    kept = (log_q - signal.log_probs.to(log_q.dtype)).clamp_max(0.0).exp()
    return expectation(signal.weights.to(log_q.dtype), kept)


class SparseScorer:
    """Scores student logits against a sparse signal; see ``fused.Scorer``."""

    def __init__(self, signal: TopK | Sampled, divergence: Mixture):
        self._signal = signal
        self._divergence = divergence

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        scores: list[Scores] = []
        block = BLOCK_ROWS if student_logits.device.type == "cpu" else count
        for row in range(0, count, block):
            end = min(row + block, count)
            signal = self._signal.take(slice(first + row, first + end))
            scores.append(_score_block_(student_logits[row:end], signal, self._divergence))
        values, overlap, agree = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return Scores(values, overlap, agree)


def _score_block_(student: Tensor, signal: TopK | Sampled, divergence: Mixture) -> Scores:
    """Scores of a few rows of logits [R, V], which the gradient then overwrites."""
    gradient, values = gradient_and_values(lambda x: signal.values(x, divergence), student)
    at_likeliest = student.gather(-1, signal.likeliest()[:, None]).squeeze(-1)
    agree = (at_likeliest == student.amax(-1)).float()
    scores = Scores(values, signal.alpha(student), agree)
    student.copy_(gradient)
    return scores


def _at_largest(ids: Tensor, log_probs: Tensor) -> Tensor:
    return ids.long().gather(-1, log_probs.argmax(-1, keepdim=True)).squeeze(-1)
