"""A model together with its cache: what the target and a draft model have in common.

On CUDA a pass of few positions is captured once as a graph over the fixed-shape cache and then
replayed. That part was written for NVIDIA devices and has not yet run on one: the fixed-shape path
that is captured is tested on the CPU against the ordinary one; capture and replay themselves are
unproven.

Shapes: B rows, S new positions, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.architecture import context_limit, head_size
from distill.speculative.cache import STEP_WIDTH, RaggedCache
from distill.speculative.forward import Forward, capturable, forward_for

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

    def prefill(self, contexts: Sequence[Sequence[int]], longest: int) -> None:
        """Cache every row's tokens but the last, which the first pass will feed.

        longest: positions to reserve, so that storage need not move while decoding.
        """
        self._forward.refresh()
        self.cache.reset(len(contexts))
        self.cache.reserve(longest)
        width = max(len(tokens) for tokens in contexts) - 1
        for start in range(0, width, PREFILL_WIDTH):
            stop = min(start + PREFILL_WIDTH, width)
            self.feed([tokens[start : min(stop, len(tokens) - 1)] for tokens in contexts], False)

    def feed(self, pending: Sequence[Sequence[int]], logits: bool = True) -> Tensor | None:
        """Run and cache each row's pending tokens (ragged): logits after the last, [B, 1, V]."""
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
        """Run [B, S] tokens at the rows' next positions: logits [B, S, V]. The caller advances."""
        self.cache.begin(tokens.shape[1])
        return self._forward(tokens, self.cache, logits)

    def outlives(self, model: PreTrainedModel) -> bool:
        """Whether it may serve the model's next call too (on CUDA: graphs are captured once)."""
        return self.device.type == "cuda" and (self.device, self.dtype) == (
            model.device,
            model.dtype,
        )


_TARGETS: WeakKeyDictionary[PreTrainedModel, CachedModel] = WeakKeyDictionary()


def cached_target(model: PreTrainedModel, cache_type: type[RaggedCache]) -> CachedModel:
    """The target with its cache: on CUDA one per model, so that its graphs outlive the call."""
    if model.device.type != "cuda" or cache_type is not RaggedCache:
        return CachedModel(model, cache_type)
    cached = _TARGETS.get(model)
    if cached is None or not cached.outlives(model):
        cached = _TARGETS[model] = CachedModel(model)
    return cached


class Captured(NamedTuple):
    """A graph with the tensors it reads its input from and leaves its output in."""

    graph: torch.cuda.CUDAGraph
    tokens: Tensor
    positions: Tensor
    output: Tensor | None


class GraphedForward:
    """`Forward` that replays narrow passes from graphs, one per shape.

    Wide passes (prefill) run eagerly. The logits it returns are overwritten by the next pass of
    the same shape.
    """

    def __init__(self, forward: Forward):
        self._forward = forward
        self._graphs: dict[tuple[int, int, int, bool], Captured] = {}
        self._addresses: tuple[int, ...] = ()
        self._generation = -1

    def refresh(self) -> None:
        self._forward.refresh()
        if self._addresses != self._forward.addresses():
            self._graphs.clear()
            self._addresses = self._forward.addresses()

    def addresses(self) -> tuple[int, ...]:
        return self._forward.addresses()

    def __call__(self, tokens: Tensor, cache: RaggedCache, logits: bool = True) -> Tensor | None:
        B, S = tokens.shape
        if S > STEP_WIDTH:
            return self._forward(tokens, cache, logits)
        if cache.generation != self._generation:
            self._graphs.clear()
            self._generation = cache.generation
        key = (B, S, cache.span, logits)
        if key not in self._graphs:
            # The eager pass sizes every lazily made tensor; capturing then writes the same values
            # again.
            self._forward(tokens, cache, logits)
            self._generation = cache.generation
            self._graphs[key] = self._capture(tokens, cache, logits)
        captured = self._graphs[key]
        captured.tokens.copy_(tokens)
        captured.positions.copy_(cache.positions)
        captured.graph.replay()
        return captured.output

    def _capture(self, tokens: Tensor, cache: RaggedCache, logits: bool) -> Captured:
        graph = torch.cuda.CUDAGraph()
        static_tokens, live = tokens.clone(), cache.positions
        cache.positions = static_positions = live.clone()
        with torch.cuda.graph(graph):
            output = self._forward(static_tokens, cache, logits)
        cache.positions = live
        return Captured(graph, static_tokens, static_positions, output)
