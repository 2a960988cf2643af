"""CUDA graphs of narrow passes over a cache of fixed shapes: captured once, then replayed.

This was written for NVIDIA devices and has not yet run on one: the fixed-shape path that is
captured is tested on the CPU against the ordinary one; capture and replay themselves are unproven.
"""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from distill.speculative.cache import STEP_WIDTH, RaggedCache
from distill.speculative.forward import Forward
from distill.speculative.passed import Passed
from distill.speculative.stopwatch import left_out


class Captured(NamedTuple):
    """A graph with the tensors it reads its inputs from and leaves its output in."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    positions: Tensor
    output: Passed


class Graphs:
    """The graphs of one computation, one per shape."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, Captured] = {}
        self._addresses: tuple[int, ...] = ()
        self._generation = -1

    def refresh(self, addresses: tuple[int, ...]) -> None:
        """Forget all graphs if the weights lie elsewhere than before."""
        if self._addresses != addresses:
            self._captured.clear()
            self._addresses = addresses

    def run(
        self,
        compute: Callable[..., Passed],
        inputs: tuple[Tensor, ...],
        cache: RaggedCache,
        kind: Hashable,
    ) -> Passed:
        """compute(*inputs), from a graph where the first input [B, S] is narrow.

        kind: what beside the shapes decides on the computation. What is returned is overwritten by
        the next pass of the same kind and shapes. Wide passes (prefill) run eagerly.
        """
        if inputs[0].shape[1] > STEP_WIDTH:
            return compute(*inputs)
        if cache.generation != self._generation:
            self._captured.clear()
            self._generation = cache.generation
        key = (kind, cache.span, *(tuple(tensor.shape) for tensor in inputs))
        if key not in self._captured:
            # It is done once for a shape, whichever decoding meets the shape first.
            with left_out(cache.device):
                # The eager pass sizes every lazily made tensor; capturing then writes the same
                # values again.
                compute(*inputs)
                self._generation = cache.generation
                self._captured[key] = _capture(compute, inputs, cache)
        captured = self._captured[key]
        for static, tensor in zip(captured.inputs, inputs, strict=True):
            static.copy_(tensor)
        captured.positions.copy_(cache.positions)
        captured.graph.replay()
        return captured.output


def _capture(
    compute: Callable[..., Passed], inputs: tuple[Tensor, ...], cache: RaggedCache
) -> Captured:
    graph = torch.cuda.CUDAGraph()
    static, live = tuple(tensor.clone() for tensor in inputs), cache.positions
    cache.positions = positions = live.clone()
    # A stream of the model's own device, which need not be the current one.
    stream = torch.cuda.Stream(cache.device)
    with torch.cuda.device(cache.device), torch.cuda.graph(graph, stream=stream):
        output = compute(*static)
    cache.positions = live
    return Captured(graph, static, positions, output)


class GraphedForward:
    """`Forward` that replays narrow passes from graphs."""

    def __init__(self, forward: Forward):
        self._forward = forward
        self._graphs = Graphs()

    def refresh(self) -> None:
        self._forward.refresh()
        self._graphs.refresh(self._forward.addresses())

    def addresses(self) -> tuple[int, ...]:
        return self._forward.addresses()

    def __call__(
        self,
        tokens: Tensor,
        cache: RaggedCache,
        logits: bool = True,
        reads: tuple[int, ...] = (),
    ) -> Passed:
        def compute(tokens: Tensor) -> Passed:
            return self._forward(tokens, cache, logits, reads)

        return self._graphs.run(compute, (tokens,), cache, (logits, reads))
