"""How a model is run over the ragged cache: any transformers causal LM, or the lean path where one fits.

Shapes: B rows, S new positions, V vocabulary.
"""

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative import lean
from distill.speculative.cache import RaggedCache


class Forward(Protocol):
    """Feeds tokens [B, S] at the positions that `cache.begin(S)` fixed.

    Returns logits [B, S, V], or None when only the cache is to be filled.
    """

    def refresh(self) -> None:
        """Called before decoding: take over weights that changed since."""
        ...

    def __call__(self, tokens: Tensor, cache: RaggedCache, logits: bool = True) -> Tensor | None: ...


def forward_for(model: PreTrainedModel) -> Forward:
    """The lean path where it computes what the model's own forward does, else the model's own forward."""
    if lean.supports(model):
        return lean.LeanForward(model, layer_windows(model))
    return GenericForward(model)


def head_size(model: PreTrainedModel) -> int:
    """Rows of the output head (padding included)."""
    head = model.get_output_embeddings()
    return head.weight.shape[0] if head is not None else model.config.get_text_config().vocab_size


def context_limit(model: PreTrainedModel) -> int:
    """Positions the model was made for; very large where its config names none."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else 2**31


class GenericForward:
    """Any transformers causal LM, through its own forward, with a mask made from the cache's lengths."""

    def __init__(self, model: PreTrainedModel):
        self._model = model
        self._windows = attention_windows(model)
        self._eager = _eager_attention(model)
        self._limit = context_limit(model)
        accepted = inspect.signature(model.forward).parameters
        # transformers 5.2x renames the argument `past_key_values` to `cache`.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._fixed: dict[str, Any] = {"use_cache": True, "return_dict": True}
        self._has_keep = "logits_to_keep" in accepted

    def refresh(self) -> None:
        """Nothing to do: this path holds no weights of its own."""

    def __call__(self, tokens: Tensor, cache: RaggedCache, logits: bool = True) -> Tensor | None:
        inputs = dict(self._fixed)
        if self._has_keep and not logits:
            inputs["logits_to_keep"] = 1
        inputs[self._cache_name] = cache
        output = self._model(
            input_ids=tokens,
            # Padding at a row's end may lie beyond a learned table; real tokens never do.
            position_ids=cache.positions.clamp_max(self._limit - 1),
            attention_mask=self._mask(cache),
            **inputs,
        )
        return output.logits if logits else None

    def _mask(self, cache: RaggedCache) -> Tensor | dict[str, Tensor]:
        masks = {kind: self._as_model_wants(cache.visible(w)) for kind, w in self._windows.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _as_model_wants(self, visible: Tensor) -> Tensor:
        if not self._eager:
            return visible
        dtype = self._model.dtype
        return torch.zeros_like(visible, dtype=dtype).masked_fill_(
            ~visible, torch.finfo(dtype).min
        )


def attention_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The kinds of attention in the model, each with its window (None: sees everything before it).

    Raises UserError naming the feature where a kind is neither.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise UserError(
            f"{type(model).__name__} has {', '.join(sorted(unknown))} layers, whose state cannot be rolled "
            "back by length; use a model with full or sliding-window attention."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        used = window is not None and getattr(config, "use_sliding_window", True)
        return {"sliding_attention": window} if used else {"full_attention": None}
    windows: dict[str, int | None] = {"full_attention": None, "sliding_attention": window}
    return {kind: windows[kind] for kind in sorted(kinds)}


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    """The window of every decoder layer."""
    config = model.config.get_text_config()
    windows = attention_windows(model)
    if len(windows) == 1:
        return list(windows.values()) * config.num_hidden_layers
    return [windows[kind] for kind in config.layer_types[: config.num_hidden_layers]]


def _eager_attention(model: PreTrainedModel) -> bool:
    kind = model.config.get_text_config()._attn_implementation
    if kind not in ("sdpa", "eager"):
        raise UserError(
            f"attention implementation {kind!r} takes no per-row mask; load the model with "
            "attn_implementation='sdpa' (or 'eager')."
        )
    return kind == "eager"
