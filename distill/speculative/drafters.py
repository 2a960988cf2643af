"""Drafters: whatever can guess the next tokens and say with which probability.

Shapes: B rows, K drafted tokens, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.processors import Distribution
from distill.speculative.rule import sample
from distill.speculative.runner import Runner

KeepGoing = Callable[[Tensor], bool]


@dataclass
class Batch:
    """The live rows, shared by the loop and the drafter; the loop appends what it commits.

    contexts: every row's tokens, prompt and output. uniforms [B, K]: this round's random numbers
    for drafting (unused by a greedy batch). vocabulary: ids that target and draft share, V.
    longest: the most positions that a row can come to occupy, drafts included.
    """

    contexts: list[list[int]]
    distribution: Distribution
    vocabulary: int
    longest: int
    uniforms: Tensor


class Proposal(NamedTuple):
    """tokens [B, K], and q [B, K, V] that drew them, or None where q is one-hot on them."""

    tokens: Tensor
    q: Tensor | None


class Drafter(Protocol):
    """Stateful per `decode` call. The rule never knows which kind it has before it."""

    @property
    def model(self) -> PreTrainedModel:
        """The model whose weights are used (put into eval mode while decoding)."""
        ...

    @property
    def head_size(self) -> int:
        """Number of ids it can put probability on."""
        ...

    def room(self, length: int) -> int:
        """How many tokens it can draft behind a context of `length` tokens."""
        ...

    def prefill(self, batch: Batch) -> None:
        """Start over on these rows."""
        ...

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        """Draft k tokens for every row.

        `keep_going`, where given, is told after each token which probability the draft gave it,
        [B], and ends the proposal early by returning False. Rows without room are padding.
        """
        ...

    def commit(self, accepted: Sequence[int]) -> None:
        """Row b keeps accepted[b] drafts; its context has grown by them and one more token."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        ...


class ModelDrafter:
    """A smaller causal LM with the target's vocabulary."""

    def __init__(self, model: PreTrainedModel, cache_type: type[RaggedCache] = RaggedCache):
        self.model = model
        self._cache_type = cache_type
        self._runner = Runner(model, cache_type)

    @property
    def head_size(self) -> int:
        return self._runner.head_size

    def room(self, length: int) -> int:
        # The last draft is never fed, so k drafts occupy length + k − 1 positions.
        return max(0, self._runner.context_limit - length + 1)

    def prefill(self, batch: Batch) -> None:
        self._batch = batch
        if not self._runner.outlives(self.model):
            self._runner = Runner(self.model, self._cache_type)
        limit = self._runner.context_limit
        within = [tokens[:limit] for tokens in batch.contexts]
        self._runner.prefill(within, min(batch.longest, limit))

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        contexts, cache = self._batch.contexts, self._runner.cache
        self._fed = [len(tokens) if self.room(len(tokens)) else 0 for tokens in contexts]
        # One token behind, or two after a full acceptance (the last draft was never fed).
        logits = self._runner.feed(
            [c[n:fed] for c, n, fed in zip(contexts, cache.lengths, self._fed, strict=True)]
        )
        step = [min(fed, 1) for fed in self._fed]
        tokens = torch.zeros((len(contexts), 0), dtype=torch.long, device=self._runner.device)
        probabilities: list[Tensor] = []
        for j in range(k):
            if j:
                logits = self._runner.run(tokens[:, -1:])
                cache.advance(step)
            assert logits is not None
            logits = logits[..., : self._batch.vocabulary]
            token, q = self._draw(logits, tokens, j)
            tokens = torch.cat((tokens, token), 1)
            if q is not None:
                probabilities.append(q)
            if keep_going is not None and not keep_going(self._confidence(logits, token, q)):
                break
        return Proposal(tokens, torch.cat(probabilities, 1) if probabilities else None)

    def _draw(self, logits: Tensor, drafts: Tensor, j: int) -> tuple[Tensor, Tensor | None]:
        """One token [B, 1] per row from logits [B, 1, V]; q [B, 1, V] unless all are greedy."""
        contexts, distribution = self._batch.contexts, self._batch.distribution
        if distribution.greedy:
            return distribution.best(logits, contexts, drafts, first=j), None
        q = distribution(logits, contexts, drafts, first=j)
        return sample(q[:, 0], self._batch.uniforms[:, j])[:, None], q

    def _confidence(self, logits: Tensor, token: Tensor, q: Tensor | None) -> Tensor:
        """The probability of the drawn tokens [B, 1]: [B]. An argmax has that of its raw logits."""
        if q is not None and self._batch.distribution.sampled:
            return q[:, 0].gather(1, token).squeeze(1)
        precise = logits[:, 0].float()
        return (precise.gather(1, token).squeeze(1) - precise.logsumexp(-1)).exp()

    def commit(self, accepted: Sequence[int]) -> None:
        cache = self._runner.cache
        cache.rollback(
            [
                min(length, fed + n) if fed else length
                for length, fed, n in zip(cache.lengths, self._fed, accepted, strict=True)
            ]
        )

    def keep(self, rows: Sequence[int]) -> None:
        self._runner.cache.keep(rows)
