"""A model together with its cache: what the target and a draft model have in common.

Shapes: B rows, S new positions, V vocabulary.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.forward import capturable, context_limit, forward_for, head_size
from distill.speculative.graphs import GraphedForward

PREFILL_WIDTH = 1024


class Runner:
    """Feeds tokens to a model over a ragged cache of its own. Holds no reference to the model."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache_type: type[RaggedCache] = RaggedCache,
        *,
        fixed: bool | None = None,
    ):
        """`fixed` shapes: by default on CUDA, where they are captured as graphs."""
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


_RUNNERS: WeakKeyDictionary[PreTrainedModel, Runner] = WeakKeyDictionary()


def target_runner(model: PreTrainedModel, cache_type: type[RaggedCache]) -> Runner:
    """The runner of a target: on CUDA one per model, so that its graphs outlive the call."""
    if model.device.type != "cuda" or cache_type is not RaggedCache:
        return Runner(model, cache_type)
    runner = _RUNNERS.get(model)
    if runner is None or not runner.outlives(model):
        runner = _RUNNERS[model] = Runner(model)
    return runner
