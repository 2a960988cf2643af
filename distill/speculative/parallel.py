"""A parallel draft guesses all of a round's tokens in one pass, behind mask tokens.

An et al. 2025 (arXiv 2504.18583), section 3.1; `distill.models.parallel` has its form. A pass reads
the tokens that it has not read yet and k − 1 masks. The last token's logits draw the first draft,
each mask's the next one. No draft is read, so that the law of each depends on the context alone
(and, under a penalty, on the drafts before it), and q is that law.

Shapes: B rows, K drafted tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.cached_model import last_of, padded
from distill.speculative.drafters import KeepGoing, ModelDrafter, Proposal


class ParallelDrafter(ModelDrafter):
    """A draft that was trained with this mask token. k may be larger than in training."""

    def __init__(
        self,
        model: PreTrainedModel,
        mask_token: int,
        cache_type: type[RaggedCache] = RaggedCache,
    ):
        super().__init__(model, cache_type)
        self.mask_token = mask_token

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        self._k = k
        return super().propose(k, keep_going)

    def _first(self) -> Tensor:
        """Run the pass: the logits [B, K, V] of all drafts are there before the first is drawn."""
        contexts, cache = self._live.contexts, self._cached.cache
        fed = [len(tokens) if self.room(len(tokens)) else 0 for tokens in contexts]
        pending = [c[n:end] for c, n, end in zip(contexts, cache.lengths, fed, strict=True)]
        masks = [self.mask_token] * (self._k - 1)
        device = self._cached.device
        logits, _ = self._cached.run(padded([[*tokens, *masks] for tokens in pending], device))
        counts = [len(tokens) for tokens in pending]
        # What the masks left in the cache never becomes valid: the next pass overwrites it.
        cache.advance(counts)
        drawn = last_of(counts, device)[:, None] + torch.arange(self._k, device=device)
        rows = torch.arange(len(counts), device=device)[:, None]
        self._logits = logits[rows, drawn][..., : self._live.vocabulary]
        return self._logits[:, :1]

    def _next(self, tokens: Tensor) -> Tensor:
        drawn = tokens.shape[1]
        return self._logits[:, drawn : drawn + 1]

    def commit(self, accepted: Sequence[int]) -> None:
        """The accepted drafts have not been read: they come with the next pass."""
