"""A forward for the Llama family: the same weights and arithmetic in far fewer operations.

Why: a decode step moves few bytes per operation, so at small batch the time of transformers'
general forward is to a good part Python and dispatch (for a small draft, nearly all of it). Here a
layer is about 20 calls: the mask is made once per pass, q, k and v are one product, the rotary
table is computed once, and weights are read where they lie.

It runs exactly the classes in `FAMILIES`, with plain linear layers of one dtype, SiLU, and a rotary
type whose angles do not depend on the length of the text; `supports` decides. Anything else runs
through transformers' own forward.

Tests compare its logits with transformers' forward for every family, with grouped
queries, biases, query/key norms, sliding windows, rotary scaling, ragged rows and every dtype.

Shapes: B rows, S new positions, H query heads, G key/value heads, D head width, L visible
positions, V vocabulary, W width of the hidden states.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from distill.speculative.cache import RaggedCache
from distill.speculative.matmul import Linear, align
from distill.speculative.passed import Passed

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
STEADY_ROTARY = ("default", "linear", "llama3", "yarn")


def supports(model: PreTrainedModel) -> bool:
    """Whether `LlamaForward` computes what this model's own forward does."""
    if type(model) not in FAMILIES:
        return False
    config = model.config
    modules, parameters = list(model.modules()), list(model.parameters())
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    return (
        config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in STEADY_ROTARY
        and all(type(module) is nn.Linear for module in linear)
        and not any(_interferes(hook) for module in modules for hook in _hooks(module))
        and len({(parameter.dtype, parameter.device) for parameter in parameters}) == 1
    )


def _hooks(module: nn.Module) -> list[Any]:
    return [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]


def _interferes(hook: Any) -> bool:
    """Whether a hook may change what the model computes.

    transformers leaves hooks behind that only watch, on every model whose hidden states were once
    asked for (as a teacher's are).
    """
    return not getattr(hook, "__module__", "").startswith("transformers.utils.")


class Norm(NamedTuple):
    """Root mean square normalisation over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


@dataclass
class Layer:
    """One decoder layer. `qkv` is a copy (three weights under each other); the rest is shared."""

    before_attention: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    out: Linear
    before_mlp: Norm
    gate: Linear
    up: Linear
    down: Linear
    scale: float
    window: int | None

    def lies_like(self, other: "Layer") -> bool:
        """Whether both have one dtype and device, so that one can become the other in place."""
        mine, theirs = self.qkv.weight, other.qkv.weight
        return (mine.dtype, mine.device) == (theirs.dtype, theirs.device)

    def take(self, other: "Layer") -> None:
        """Become `other`, but leave `qkv`, which is a copy, at its address."""
        other.qkv = self.qkv.overwritten(other.qkv)
        for field in fields(self):
            setattr(self, field.name, getattr(other, field.name))


class LlamaForward:
    """`Forward` over the weights of a model that `supports` accepts."""

    def __init__(self, model: PreTrainedModel, windows: list[int | None]):
        config = model.config
        self._inner: Any = model.get_submodule("model")
        self._output: Any = model.get_output_embeddings()
        self._windows = windows
        H, G = config.num_attention_heads, config.num_key_value_heads
        D = getattr(config, "head_dim", None) or config.hidden_size // H
        self._layers: list[Layer] = []
        self._runner = LayerRunner(H, G, D, self._inner.rotary_emb)

    def refresh(self) -> None:
        """Take the current weights: they may have been trained, cast or moved since."""
        align(self._inner, self._output)
        modules = list(self._inner.layers)[: len(self._windows)]
        current = [
            layer_of(module, window, module.self_attn.scaling)
            for module, window in zip(modules, self._windows, strict=True)
        ]
        self._embedding = self._inner.embed_tokens.weight
        self._norm = norm_of(self._inner.norm)
        self._head = linear_of(self._output)
        if self._layers and current and self._layers[0].lies_like(current[0]):
            for layer, other in zip(self._layers, current, strict=True):
                layer.take(other)
        else:
            self._layers = current
            self._runner.forget()

    def addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self._inner.parameters())

    def __call__(
        self,
        tokens: Tensor,
        cache: RaggedCache,
        logits: bool = True,
        reads: tuple[int, ...] = (),
    ) -> Passed:
        x = F.embedding(tokens, self._embedding)
        here = self._runner.begin(cache, x, set(self._windows))
        read: dict[int, Tensor] = {}
        for index, layer in enumerate(self._layers):
            x = self._runner.run(layer, x, layer.before_attention(x), here, index)
            if index + 1 in reads:
                read[index + 1] = x
        if logits or len(self._layers) in read:
            x = read[len(self._layers)] = self._norm(x)
        states = torch.cat([read[number] for number in reads], -1) if reads else None
        return Passed(self._head(x) if logits else None, states)


class Here(NamedTuple):
    """Where a pass stands: its cache, its rotary tables, and a mask for each window."""

    cache: RaggedCache
    rotary: tuple[Tensor, Tensor]
    masks: dict[int | None, Tensor | None]


class LayerRunner:
    """Runs Llama layers over a ragged cache. H query heads, G key/value heads, D head width.

    rotary: the module that gives cos and sin [1, L, D] of positions [1, L].
    """

    def __init__(self, H: int, G: int, D: int, rotary: nn.Module):
        self._H, self._G, self._D = H, G, D
        self._rotary_module = rotary
        self._table: tuple[Tensor, Tensor] | None = None

    def forget(self) -> None:
        """Make the rotary table anew: dtype or device of what runs has changed."""
        self._table = None

    def begin(self, cache: RaggedCache, x: Tensor, windows: set[int | None]) -> Here:
        """Prepare for a pass of x [B, S, W] at the positions that the cache has fixed."""
        masks = {window: self._mask(cache, window, x.dtype) for window in windows}
        return Here(cache, self._rotary(cache, x), masks)

    def run(self, layer: Layer, x: Tensor, entering: Tensor, here: Here, index: int) -> Tensor:
        """The layer's output [B, S, W]: x is its residual, `entering` what q, k and v read."""
        heads = self._heads(layer, entering, here.rotary)
        x = x + layer.out(self._attend(layer, heads, here.masks[layer.window], here.cache, index))
        h = layer.before_mlp(x)
        return x + layer.down(F.silu(layer.gate(h)) * layer.up(h))

    def _heads(
        self, layer: Layer, x: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q [B, S, H, D] and k [B, S, G, D], and v [B, S, G, D]."""
        H, G = self._H, self._G
        # A product of several positions comes out transposed: in order, what follows is faster.
        heads = layer.qkv(x).contiguous().view(*x.shape[:2], H + 2 * G, self._D)
        qk, v = heads[:, :, : H + G], heads[:, :, H + G :]
        if layer.query_norm is not None and layer.key_norm is not None:
            qk = torch.cat((layer.query_norm(qk[:, :, :H]), layer.key_norm(qk[:, :, H:])), 2)
        cos, sin = rotary
        # rotate_half(x) · sin is roll(x) · signed sin: one copy instead of three operations.
        qk = torch.addcmul(qk * cos, qk.roll(self._D // 2, -1), sin)
        return qk[:, :, :H], qk[:, :, H:], v

    def _attend(
        self,
        layer: Layer,
        heads: tuple[Tensor, Tensor, Tensor],
        mask: Tensor | None,
        cache: RaggedCache,
        index: int,
    ) -> Tensor:
        """Write k and v, and attend: [B, S, H·D]."""
        q, k, v = heads
        B, S, H, D = q.shape
        G = self._G
        keys, values = cache.update(k.transpose(1, 2), v.transpose(1, 2), index)
        if mask is None and S > 1:
            out = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                keys,
                values,
                is_causal=True,
                scale=layer.scale,
                enable_gqa=H != G,
            )
            return out.transpose(1, 2).reshape(B, S, H * D)
        # The H/G query heads of a group attend to the same keys: they become rows of one product.
        q = q.view(B, S, G, H // G, D).transpose(1, 2).reshape(B, G, -1, D)
        out = F.scaled_dot_product_attention(q, keys, values, mask, scale=layer.scale)
        return out.view(B, G, S, H // G, D).transpose(1, 2).reshape(B, S, H * D)

    def _mask(self, cache: RaggedCache, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [B, 1, S·H/G, L]; None where all of L is seen or causality does it."""
        S, start = cache.positions.shape[1], cache.uniform_start
        unlimited = window is None or cache.span <= window
        if unlimited and start is not None and (S == 1 or start == 0):
            return None
        seen = cache.visible(window)
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        mask.masked_fill_(~seen, float("-inf"))
        return mask.repeat_interleave(self._H // self._G, 2)

    def _rotary(self, cache: RaggedCache, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tables of cos and signed sin at the new positions, each [B or 1, S, 1, D]."""
        if self._table is None or self._table[0].shape[0] < cache.capacity:
            positions = torch.arange(cache.capacity, device=x.device)[None]
            cos, sin = self._rotary_module(x, positions)
            sign = torch.ones_like(sin[0, 0])
            sign[: self._D // 2] = -1
            self._table = cos[0], sin[0] * sign
        cos, sin = self._table
        if cache.uniform_start is not None:
            new = slice(cache.uniform_start, cache.span)
            return cos[None, new, None], sin[None, new, None]
        return cos[cache.positions][:, :, None], sin[cache.positions][:, :, None]


def layer_of(module: Any, window: int | None, scale: float) -> Layer:
    """The layer of a module that is laid out and named as transformers' Llama layer is."""
    attention, mlp = module.self_attn, module.mlp
    parts = [attention.q_proj, attention.k_proj, attention.v_proj]
    biased = parts[0].bias is not None
    return Layer(
        before_attention=norm_of(module.input_layernorm),
        qkv=Linear.of(
            torch.cat([part.weight for part in parts]),
            torch.cat([part.bias for part in parts]) if biased else None,
        ),
        query_norm=norm_of(attention.q_norm) if hasattr(attention, "q_norm") else None,
        key_norm=norm_of(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=linear_of(attention.o_proj),
        before_mlp=norm_of(module.post_attention_layernorm),
        gate=linear_of(mlp.gate_proj),
        up=linear_of(mlp.up_proj),
        down=linear_of(mlp.down_proj),
        scale=scale,
        window=window,
    )


def norm_of(module: Any) -> Norm:
    """The norm of torch's module or of transformers' own."""
    name = "eps" if isinstance(module, nn.RMSNorm) else "variance_epsilon"
    return Norm(module.weight, getattr(module, name))


def linear_of(module: Any) -> Linear:
    """The linear layer of a module."""
    return Linear.of(module.weight, module.bias)
