"""CUDA graphs over the fixed-shape cache: a step of few positions is captured once and replayed.

Written for NVIDIA devices and not yet run on one: the fixed-shape path that is captured is tested
on the CPU against the ordinary one; capture and replay themselves are unproven.

Shapes: B rows, S new positions, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from distill.speculative.cache import STEP_WIDTH, RaggedCache
from distill.speculative.forward import Forward


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
