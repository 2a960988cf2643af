"""The forward of an EAGLE-3 head over a ragged cache, with the layers and products of the target's.

Shapes: B rows, S new entries, W width of the hidden states, v reduced vocabulary, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from distill.errors import UserError
from distill.models.eagle3 import Eagle3Head, head_width
from distill.speculative.cache import RaggedCache
from distill.speculative.graphs import Graphs
from distill.speculative.llama_forward import (
    STEADY_ROTARY,
    Layer,
    LayerRunner,
    layer_of,
    linear_of,
    norm_of,
)
from distill.speculative.matmul import align
from distill.speculative.passed import Passed


class Tip(NamedTuple):
    """What each row's newest entry gave: the state carried on [B, 1, W] and logits [B, 1, v]."""

    state: Tensor
    logits: Tensor


class Eagle3Forward:
    """Runs entries of the head over its cache: true ones of features, or one of its own state."""

    def __init__(self, head: Eagle3Head, embedding: Tensor):
        config: Any = head.config
        kind = (config.rope_parameters or {}).get("rope_type", "default")
        if kind not in STEADY_ROTARY:
            raise UserError(
                f"the head has {kind} rotary positions, whose angles change with the length of the "
                f"text; use one of {', '.join(STEADY_ROTARY)}."
            )
        self._module = head
        self._embedding = embedding
        D = head_width(config)
        self._scale = D**-0.5
        self._runner = LayerRunner(
            config.num_attention_heads, config.num_key_value_heads, D, head.rotary
        )
        self._layer: Layer | None = None
        self._graphs = Graphs() if head.device.type == "cuda" else None

    def refresh(self) -> None:
        """Take the current weights: they may have been trained, cast or moved since."""
        head = self._module
        align(head)
        current = layer_of(head.midlayer, None, self._scale)
        if self._layer is not None and self._layer.lies_like(current):
            self._layer.take(current)
        else:
            self._layer = current
            self._runner.forget()
        self._fc, self._state_norm = linear_of(head.fc), norm_of(head.midlayer.hidden_norm)
        self._dtype = head.dtype
        self._norm, self._head = norm_of(head.norm), linear_of(head.lm_head)
        if self._graphs is not None:
            weights = (*head.parameters(), self._embedding)
            self._graphs.refresh(tuple(weight.data_ptr() for weight in weights))

    def true_entries(
        self, tokens: Tensor, features: Tensor, last: Tensor, cache: RaggedCache
    ) -> Tip:
        """Cache entries of tokens [B, S] and features [B, S, 3W]; the tip is at last [B] < S."""
        return self._run(self._true_entries, (tokens, features, last), cache)

    def own_entry(self, tokens: Tensor, state: Tensor, cache: RaggedCache) -> Tip:
        """Cache the entry of tokens [B, 1] and the head's own state [B, 1, W]."""
        return self._run(self._own_entry, (tokens, state), cache)

    def _run(
        self, compute: Callable[..., Passed], inputs: tuple[Tensor, ...], cache: RaggedCache
    ) -> Tip:
        cache.begin(inputs[0].shape[1])
        if self._graphs is None:
            logits, state = compute(cache, *inputs)
        else:
            bound = partial(compute, cache)
            logits, state = self._graphs.run(bound, inputs, cache, compute.__name__)
        assert logits is not None
        assert state is not None
        return Tip(state, logits)

    def _true_entries(
        self, cache: RaggedCache, tokens: Tensor, features: Tensor, last: Tensor
    ) -> Passed:
        state = self._layer_output(cache, tokens, self._fc(features.to(self._dtype)))
        if state.shape[1] > 1:
            state = state[torch.arange(len(last), device=last.device), last][:, None]
        return Passed(self._head(self._norm(state)), state)

    def _own_entry(self, cache: RaggedCache, tokens: Tensor, state: Tensor) -> Passed:
        state = self._layer_output(cache, tokens, state)
        return Passed(self._head(self._norm(state)), state)

    def _layer_output(self, cache: RaggedCache, tokens: Tensor, state: Tensor) -> Tensor:
        layer = self._layer
        assert layer is not None, "refresh comes first"
        embedded = F.embedding(tokens, self._embedding).to(self._dtype)
        entering = torch.cat((layer.before_attention(embedded), self._state_norm(state)), -1)
        return self._runner.run(layer, state, entering, self._runner.begin(cache, state, {None}), 0)
