"""A lean forward for the Llama family: the same weights and the same arithmetic in far fewer operations.

Why: a decode step moves few bytes per operation, so at small batch the time of transformers' general forward is to a
good part Python and dispatch (about a third of a step of a 135M model on 2 cores; nearly all of it for
a small draft). Here one layer is about 20 calls, the mask is made once per pass, q, k and v are one
product, and the rotary table is computed once.

Which: exactly the classes in `FAMILIES`, with plain linear layers of one dtype, SiLU, and a rotary type whose
angles do not depend on the length of the sequence. Anything else runs through transformers' own forward
(`supports` says which). How verified: tests compare logits with transformers' forward for every family, with
grouped queries, biases, query/key norms, sliding windows, rotary scaling, ragged rows and each dtype.

Shapes: B rows, S new positions, H query heads, G key/value heads, D head width, L visible positions,
V vocabulary.
"""

from dataclasses import dataclass

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

FAMILIES = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
STEADY_ROTARY = ("default", "linear", "llama3", "yarn")
# Up to this many rows a bf16 product on a CPU is bound by reading the weight.
FEW_ROWS = 16


def supports(model: PreTrainedModel) -> bool:
    """Whether the lean forward computes exactly what this model's own forward does."""
    if type(model) not in FAMILIES:
        return False
    config = model.config
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return (
        config.hidden_act == "silu"
        and config.rope_parameters["rope_type"] in STEADY_ROTARY
        and not getattr(config, "pretraining_tp", 1) > 1
        and all(type(m) is nn.Linear and not m._forward_hooks for m in linear)
        and len({p.dtype for p in model.parameters()}) == 1
        and len({p.device for p in model.parameters()}) == 1
    )


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ (+ bias) for x [B, S, in], weight [out, in] -> [B, S, out].

    In bf16 on a CPU `F.linear` re-orders the weight on every call; for few rows the transposed products
    below read it as it lies, at up to twice the speed.
    """
    rows = x.shape[0] * x.shape[1]
    if x.dtype != torch.bfloat16 or x.device.type != "cpu" or rows > FEW_ROWS:
        return F.linear(x, weight, bias)
    if rows == 1:
        flat = torch.mv(weight, x.view(-1))
    else:
        flat = torch.mm(weight, x.reshape(rows, -1).T).T.contiguous()
    result = flat.view(x.shape[0], x.shape[1], -1)
    return result if bias is None else result + bias


@dataclass
class Layer:
    """One decoder layer's weights; qkv is [(H + 2G)·D, hidden], a copy, the others are the model's own."""

    module: nn.Module
    qkv: Tensor
    qkv_bias: Tensor | None
    window: int | None


class LeanForward:
    """`Forward` over the weights of a model that `supports` accepts."""

    def __init__(self, model: PreTrainedModel, windows: list[int | None]):
        config = model.config
        self._config = config
        self._inner = model.get_submodule("model")
        self._head = model.get_output_embeddings()
        self._H, self._G = config.num_attention_heads, config.num_key_value_heads
        self._D = getattr(config, "head_dim", None) or config.hidden_size // self._H
        self._table: tuple[Tensor, Tensor] | None = None
        self._modules = list(self._inner.layers)[: config.num_hidden_layers]
        self._windows = windows

    def refresh(self) -> None:
        """Take the current weights (they may have been trained since the last call)."""
        self._layers = [
            Layer(module, *_fused(module.self_attn), window)
            for module, window in zip(self._modules, self._windows, strict=True)
        ]

    def __call__(self, tokens: Tensor, cache: RaggedCache, logits: bool = True) -> Tensor | None:
        x = F.embedding(tokens, self._inner.embed_tokens.weight)
        rotary = self._rotary(cache, x)
        masks = {window: self._mask(cache, window, x.dtype) for window in set(self._windows)}
        for index, layer in enumerate(self._layers):
            module = layer.module
            x = x + self._attend(layer, index, _norm(module.input_layernorm, x), rotary, masks, cache)
            mlp, h = module.mlp, _norm(module.post_attention_layernorm, x)
            gate = F.silu(product(h, mlp.gate_proj.weight, mlp.gate_proj.bias))
            up = product(h, mlp.up_proj.weight, mlp.up_proj.bias)
            x = x + product(gate * up, mlp.down_proj.weight, mlp.down_proj.bias)
        if not logits:
            return None
        return product(_norm(self._inner.norm, x), self._head.weight, self._head.bias)

    def _attend(self, layer, index, x, rotary, masks, cache) -> Tensor:
        B, S, _ = x.shape
        H, G, D = self._H, self._G, self._D
        attention = layer.module.self_attn
        heads = product(x, layer.qkv, layer.qkv_bias).view(B, S, H + 2 * G, D)
        if hasattr(attention, "q_norm"):
            q, k = _norm(attention.q_norm, heads[:, :, :H]), _norm(attention.k_norm, heads[:, :, H : H + G])
            heads = torch.cat((q, k, heads[:, :, H + G :]), 2)
        cos, sin = rotary
        qk = heads[:, :, : H + G]
        # rotate_half(x) · sin == roll(x) · signed sin: one copy instead of three operations.
        qk = torch.addcmul(qk * cos, qk.roll(D // 2, -1), sin)
        keys, values = cache.update(qk[:, :, H:].transpose(1, 2), heads[:, :, H + G :].transpose(1, 2), index)
        mask = masks[layer.window]
        if mask is None and S > 1:
            q = qk[:, :, :H].transpose(1, 2)
            out = F.scaled_dot_product_attention(
                q, keys, values, is_causal=True, scale=attention.scaling, enable_gqa=H != G
            ).transpose(1, 2)
        else:
            # The H/G query heads of a group attend to the same keys: they become rows of one product.
            q = qk[:, :, :H].view(B, S, G, H // G, D).permute(0, 2, 1, 3, 4).reshape(B, G, -1, D)
            out = F.scaled_dot_product_attention(q, keys, values, mask, scale=attention.scaling)
            out = out.view(B, G, S, H // G, D).permute(0, 2, 1, 3, 4)
        return product(out.reshape(B, S, H * D), attention.o_proj.weight, attention.o_proj.bias)

    def _mask(self, cache: RaggedCache, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [B, 1, S·H/G, L]; None where every query sees all of L or plain causality does it."""
        B, S = cache.positions.shape
        start = cache.uniform_start
        unlimited = window is None or cache.span <= window
        if unlimited and start is not None and (S == 1 or start == 0):
            return None
        seen = cache.visible(window)
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        mask.masked_fill_(~seen, float("-inf"))
        return mask.repeat_interleave(self._H // self._G, 2)

    def _rotary(self, cache: RaggedCache, x: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin at the new positions, each [B or 1, S, 1, D]."""
        if self._table is None or self._table[0].shape[0] < cache.capacity:
            positions = torch.arange(cache.capacity, device=x.device)[None]
            cos, sin = self._inner.rotary_emb(x, positions)
            sign = torch.ones_like(sin[0, 0])
            sign[: self._D // 2] = -1
            self._table = cos[0], sin[0] * sign
        cos, sin = self._table
        if cache.uniform_start is not None:
            at = slice(cache.uniform_start, cache.span)
            return cos[at][None, :, None], sin[at][None, :, None]
        return cos[cache.positions][:, :, None], sin[cache.positions][:, :, None]


def _norm(module: nn.Module, x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight, module.variance_epsilon)


def _fused(attention: nn.Module) -> tuple[Tensor, Tensor | None]:
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    return weight, bias
