"""How a model is run over the ragged cache: by `LlamaForward` if it fits, else its own forward.

Shapes: B rows, S new positions, H width of the hidden states, V vocabulary.
"""

import inspect
import weakref
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative import llama_forward
from distill.speculative.architecture import (
    attention_windows,
    context_limit,
    is_eager,
    layer_windows,
)
from distill.speculative.cache import RaggedCache
from distill.speculative.passed import Passed

# Relative error allowed between cached, ragged decoding and the model's plain forward.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


_PROVEN: weakref.WeakSet[PreTrainedModel] = weakref.WeakSet()


class Forward(Protocol):
    """Feeds tokens [B, S] at the positions that `cache.begin(S)` fixed.

    reads: numbers of decoder layers after which the states are wanted. The number of all layers
    means what the head reads, behind the final norm.
    """

    def refresh(self) -> None:
        """Take over weights that changed since the last call; called before every decoding."""
        ...

    def addresses(self) -> tuple[int, ...]:
        """Where in memory the weights lie that it reads."""
        ...

    def __call__(
        self,
        tokens: Tensor,
        cache: RaggedCache,
        logits: bool = True,
        reads: tuple[int, ...] = (),
    ) -> Passed: ...


def forward_for(model: PreTrainedModel) -> Forward:
    """`LlamaForward` where it computes what the model's own forward does, else that forward."""
    if llama_forward.supports(model):
        return llama_forward.LlamaForward(model, layer_windows(model))
    return GenericForward(model)


def capturable(model: PreTrainedModel) -> bool:
    """Whether a pass makes no decision on the host and stays on one device, as a graph requires."""
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return False
    return llama_forward.supports(model) or bool(getattr(model, "_can_compile_fullgraph", False))


class GenericForward:
    """Any transformers causal LM, through its own forward, masked by the cache's lengths.

    A model proves itself once before its first use: ragged decoding over the cache must give the
    logits of its plain forward, so a family whose positions or state work in another way is
    refused, not corrupted.
    """

    def __init__(self, model: PreTrainedModel):
        self._model = weakref.ref(model)
        self._windows = attention_windows(model)
        self._eager = is_eager(model)
        self._limit = context_limit(model)
        accepted = inspect.signature(model.forward).parameters
        # transformers renamed this argument on the way from 5.17 to 5.24.
        self._cache_name = "past_key_values" if "past_key_values" in accepted else "cache"
        self._keeps_last = "logits_to_keep" in accepted

    def refresh(self) -> None:
        if self._module not in _PROVEN:
            _prove(self, self._module)
            _PROVEN.add(self._module)

    def addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self._module.parameters())

    @property
    def _module(self) -> PreTrainedModel:
        model = self._model()
        assert model is not None, "the model was deleted while it was decoding"
        return model

    def __call__(
        self,
        tokens: Tensor,
        cache: RaggedCache,
        logits: bool = True,
        reads: tuple[int, ...] = (),
    ) -> Passed:
        inputs: dict[str, Any] = {self._cache_name: cache, "use_cache": True, "return_dict": True}
        if reads:
            inputs["output_hidden_states"] = True
        if self._keeps_last and not logits:
            inputs["logits_to_keep"] = 1
        output = self._module(
            input_ids=tokens,
            # Padding at a row's end may lie beyond a learned table; real tokens never do.
            position_ids=cache.positions.clamp_max(self._limit - 1),
            attention_mask=self._mask(cache),
            **inputs,
        )
        here = tokens.device  # of a model spread over several devices, its first one
        read = [output.hidden_states[n].to(here) for n in reads]
        states = torch.cat(read, -1) if reads else None
        return Passed(output.logits.to(here) if logits else None, states)

    def _mask(self, cache: RaggedCache) -> Tensor | dict[str, Tensor]:
        masks = {kind: self._as_wanted(cache.visible(w)) for kind, w in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_wanted(self, visible: Tensor) -> Tensor:
        """Boolean for SDPA; additive for eager attention."""
        if not self._eager:
            return visible
        additive = torch.zeros(visible.shape, dtype=self._module.dtype, device=visible.device)
        return additive.masked_fill_(~visible, torch.finfo(self._module.dtype).min)


def _prove(forward: GenericForward, model: PreTrainedModel) -> None:
    """Compare two ragged rows decoded over a cache with the same rows through the plain forward."""
    rows = [[1, 2, 3, 4, 5, 6], [6, 5, 4, 3]]
    vocabulary = model.config.get_text_config().vocab_size
    rows = [[token % vocabulary for token in row] for row in rows]
    cache = RaggedCache(len(rows), model.device)
    prefix = [row[:-2] + [0] * (6 - len(row)) for row in rows]
    cache.begin(4)
    forward(torch.tensor(prefix, device=model.device), cache, logits=False)
    cache.advance([len(row) - 2 for row in rows])
    cache.begin(2)
    got = forward(torch.tensor([row[-2:] for row in rows], device=model.device), cache).logits
    assert got is not None
    for row, logits in zip(rows, got.double(), strict=True):
        plain = model(input_ids=torch.tensor([row], device=model.device), use_cache=False).logits
        expected = plain[0, -2:].double()
        error = ((logits - expected).norm() / expected.norm()).item()
        if not error <= TOLERANCE[model.dtype]:
            raise UserError(
                f"{type(model).__name__} does not decode over a ragged cache (relative error "
                f"{error:.2g} against its own forward); use a model with rotary or learned "
                "positions and plain attention."
            )
