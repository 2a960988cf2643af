"""Negative controls: the engine with one fault each. A certificate that passes them proves nothing.

Shapes: B rows, K drafted tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from distill.speculative.cache import RaggedCache
from distill.speculative.drafters import KeepGoing, Proposal
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.parallel import ParallelDrafter
from distill.speculative.round_length import Confident, ConfidentRound
from distill.speculative.rule import Rule, Ruling, sample, speculative_rule


def without_residual(
    drafts: Tensor, q: Tensor, p: Tensor, uniforms: Tensor, counts: Tensor
) -> Ruling:
    """After a rejection p is sampled, not norm(max(0, p − q)): what q proposes comes too often."""
    ruling = speculative_rule(drafts, q, p, uniforms, counts)
    p_next = p[torch.arange(len(drafts), device=p.device), ruling.accepted]
    return ruling._replace(next_token=sample(p_next.contiguous(), uniforms[:, -1]))


def ignoring_temperature(temperature: float) -> Rule:
    """Drafts come from q at this temperature and are tested against q at temperature 1."""

    def rule(drafts: Tensor, q: Tensor, p: Tensor, uniforms: Tensor, counts: Tensor) -> Ruling:
        untempered = q**temperature
        untempered = untempered / untempered.sum(-1, keepdim=True)
        return speculative_rule(drafts, untempered, p, uniforms, counts)

    return rule


class OffByOneCache(RaggedCache):
    """A cache whose rollback leaves one rejected token in place."""

    def rollback(self, lengths: Sequence[int]) -> None:
        super().rollback(
            [min(new + 1, old) for new, old in zip(lengths, self.lengths, strict=True)]
        )


class Foreseeing(Confident):
    """Leaves out the unsure token itself, so that whether it is tested depends on its draw."""

    def start(self, rows: int) -> ConfidentRound:
        return _ForeseeingRound(rows, self.threshold)


class _ForeseeingRound(ConfidentRound):
    def __call__(self, confidence: Tensor) -> bool:
        before = self.counts.copy()
        more = super().__call__(confidence)
        drawn = zip(before, self.counts, confidence.tolist(), strict=True)
        self.counts = [now if sure >= self.threshold else old for old, now, sure in drawn]
        return more


class ShiftedFeatures(Eagle3Drafter):
    """Reads the features of the position before: it guesses worse, and the law must stay."""

    def read(self, states: Tensor) -> None:
        super().read(states.roll(1, 1))


class ShiftedMarginals(ParallelDrafter):
    """Says that it drew each token from the law of the mask position before."""

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        proposal = super().propose(k, keep_going)
        return proposal._replace(q=None if proposal.q is None else proposal.q.roll(1, 1))


class WrongIds(Eagle3Drafter):
    """Says that it drew each id with the probability of its neighbour in the reduced vocabulary."""

    def _spread(self, q: Tensor) -> Tensor:
        return super()._spread(q.roll(1, -1))
