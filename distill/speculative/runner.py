"""A model together with its cache: what the target and a draft model have in common.

Shapes: B rows, S new positions, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.forward import context_limit, forward_for, head_size

PREFILL_WIDTH = 1024


class Runner:
    """Feeds tokens to a model over a ragged cache of its own."""

    def __init__(self, model: PreTrainedModel, cache_type: type[RaggedCache] = RaggedCache):
        self.model = model
        self.device = model.device
        self.context_limit = context_limit(model)
        self.head_size = head_size(model)
        self._cache_type = cache_type
        self._forward = forward_for(model)

    def prefill(self, contexts: Sequence[Sequence[int]]) -> None:
        """Cache every row's tokens but the last, which the first pass will feed."""
        self._forward.refresh()
        self.cache = self._cache_type(len(contexts), self.device)
        longest = max(len(tokens) for tokens in contexts) - 1
        for start in range(0, longest, PREFILL_WIDTH):
            stop = min(start + PREFILL_WIDTH, longest)
            self.feed([tokens[start : min(stop, len(tokens) - 1)] for tokens in contexts], False)

    def feed(self, pending: Sequence[Sequence[int]], logits: bool = True) -> Tensor | None:
        """Run each row's pending tokens (ragged) and cache them: logits after the last one, [B, 1, V]."""
        counts = [len(tokens) for tokens in pending]
        width = max(counts)
        padded = [list(tokens) + [0] * (width - len(tokens)) for tokens in pending]
        output = self.run(torch.tensor(padded, device=self.device), logits)
        self.cache.advance(counts)
        if output is None or width == 1:
            return output
        last = torch.tensor(counts, device=self.device).sub_(1).clamp_min_(0)
        return output[torch.arange(len(counts), device=self.device), last][:, None]

    def run(self, tokens: Tensor, logits: bool = True) -> Tensor | None:
        """Run [B, S] tokens at the rows' next positions: logits [B, S, V]. The caller advances the cache."""
        self.cache.begin(tokens.shape[1])
        return self._forward(tokens, self.cache, logits)
