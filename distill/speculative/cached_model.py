"""A model together with its cache: what the target and a draft model have in common.

On CUDA a pass of few positions is captured once as a graph over the fixed-shape cache and then
replayed (`graphs`).

Shapes: B rows, S new positions, V vocabulary.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.architecture import context_limit, head_size
from distill.speculative.cache import RaggedCache
from distill.speculative.forward import capturable, forward_for
from distill.speculative.graphs import GraphedForward
from distill.speculative.passed import Passed

PREFILL_WIDTH = 1024


class CachedModel:
    """Feeds tokens to a model over a ragged cache of its own, without a reference to the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache_type: type[RaggedCache] = RaggedCache,
        *,
        fixed: bool | None = None,
    ):
        """`fixed` asks for fixed shapes; the default is on CUDA, where graphs are captured."""
        self.device, self.dtype = model.device, model.dtype
        self.context_limit = context_limit(model)
        self.head_size = head_size(model)
        captured = self.device.type == "cuda" and capturable(model)
        forward = forward_for(model)
        self._forward = GraphedForward(forward) if captured else forward
        self.cache = cache_type(1, self.device, fixed=captured if fixed is None else fixed)
        self._reads: tuple[int, ...] = ()

    def prefill(
        self,
        contexts: Sequence[Sequence[int]],
        longest: int,
        reads: tuple[int, ...] = (),
        read: Callable[[Tensor], None] | None = None,
    ) -> None:
        """Cache every row's tokens but the last, which the first pass will feed.

        longest: positions to reserve, so that storage need not move while decoding. reads: layers
        after which this and all later passes give the states. read: takes those of the prompts,
        chunk by chunk.
        """
        self._reads = reads
        self._forward.refresh()
        self.cache.reset(len(contexts))
        self.cache.reserve(longest)
        width = max(len(tokens) for tokens in contexts) - 1
        for start in range(0, width, PREFILL_WIDTH):
            stop = min(start + PREFILL_WIDTH, width)
            chunk = [tokens[start : min(stop, len(tokens) - 1)] for tokens in contexts]
            states = self._cache_pending(chunk, False).states
            if read is not None and states is not None:
                read(states)

    def feed(self, pending: Sequence[Sequence[int]]) -> Tensor:
        """Run and cache each row's pending tokens (ragged): logits after the last, [B, 1, V]."""
        logits = self._cache_pending(pending, True).logits
        assert logits is not None
        if logits.shape[1] == 1:
            return logits
        last = last_of([len(tokens) for tokens in pending], self.device)
        return logits[torch.arange(len(last), device=self.device), last][:, None]

    def _cache_pending(self, pending: Sequence[Sequence[int]], logits: bool) -> Passed:
        passed = self._run(padded(pending, self.device), logits)
        self.cache.advance([len(tokens) for tokens in pending])
        return passed

    def run(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run [B, S] tokens at the rows' next positions; the caller advances.

        Returns:
            Logits [B, S, V], and the states that `prefill` was asked for, side by side.
        """
        logits, states = self._run(tokens, True)
        assert logits is not None
        return logits, states

    def _run(self, tokens: Tensor, logits: bool) -> Passed:
        self.cache.begin(tokens.shape[1])
        return self._forward(tokens, self.cache, logits, self._reads)

    def outlives(self, model: PreTrainedModel) -> bool:
        """Whether it may serve the model's next call too (on CUDA: graphs are captured once)."""
        return self.device.type == "cuda" and (self.device, self.dtype) == (
            model.device,
            model.dtype,
        )


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The rows' tokens, padded with zeros on the right: [B, longest]."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)


def last_of(counts: Sequence[int], device: torch.device) -> Tensor:
    """Where each row's last of counts[b] positions stands: [B]; 0 where it has none."""
    return torch.tensor(counts, device=device).sub_(1).clamp_min_(0)


_TARGETS: WeakKeyDictionary[PreTrainedModel, CachedModel] = WeakKeyDictionary()


def cached_target(model: PreTrainedModel, cache_type: type[RaggedCache]) -> CachedModel:
    """The target with its cache: on CUDA one per model, so that its graphs outlive the call."""
    if model.device.type != "cuda" or cache_type is not RaggedCache:
        return CachedModel(model, cache_type)
    cached = _TARGETS.get(model)
    if cached is None or not cached.outlives(model):
        cached = _TARGETS[model] = CachedModel(model)
    return cached
