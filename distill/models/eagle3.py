"""The EAGLE-3 head: one decoder layer that reads the target's hidden states and drafts from them.

Li et al. 2025, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test" (arXiv 2503.01840). The form is the one that vLLM, SGLang, llama.cpp, OpenVINO
and TensorRT-LLM load: exactly three features, one Llama layer without biases, no further norms.

Shapes: B rows, S entries, H the target's width, G key/value heads, D head width, v reduced
vocabulary, V the target's.

Entry i stands for the target's position i. It is made of the embedding of token i + 1 and of the
features that the target had at position i, and its output predicts token i + 2. Where the target
has not read position i yet, the head's own output of entry i − 1 takes the place of the features.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from distill.errors import UserError
from distill.models.config import EAGLE3

PLAIN_NORMS = ("LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm")
"""Norms that multiply by their weight itself: Gemma's multiplies by one more."""
FEWEST_LAYERS = 6
"""Of a target, so that the three features come from three layers, in order."""


def feature_layers(num_hidden_layers: int) -> tuple[int, int, int]:
    """The numbers of layers after which the features are taken: 2, n // 2 and n − 3.

    All engines agree on these where a folder names none.

    Raises:
        UserError: the target has too few layers.
    """
    n = num_hidden_layers
    if n < FEWEST_LAYERS:
        raise UserError(
            f"draft=eagle3 reads the target after layers 2, n//2 and n-3, and this target has {n} "
            f"layers: it needs {FEWEST_LAYERS} or more; use draft=auto."
        )
    return 2, n // 2, n - 3


class Attention(nn.Module):
    """Projections of the head's attention; q, k and v read embedding and state side by side."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        width, D = config.hidden_size, head_width(config)
        groups = config.num_key_value_heads or config.num_attention_heads
        queries, keys = config.num_attention_heads * D, groups * D
        self.q_proj = nn.Linear(2 * width, queries, bias=False)
        self.k_proj = nn.Linear(2 * width, keys, bias=False)
        self.v_proj = nn.Linear(2 * width, keys, bias=False)
        self.o_proj = nn.Linear(queries, width, bias=False)


class Mlp(nn.Module):
    """The gated MLP of a Llama layer."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The one decoder layer, in two halves, between which the caller attends."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        width, eps = config.hidden_size, config.rms_norm_eps
        self._heads = (config.num_attention_heads, config.num_key_value_heads, head_width(config))
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.mlp = Mlp(config)

    def project(
        self, embedded: Tensor, state: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated q [B, heads, S, D] and k [B, G, S, D], and v, of embeddings and states [B, S, H].

        cos, sin: [B or 1, S, D].
        """
        heads, G, D = self._heads
        B, S, _ = state.shape
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(state)), -1)
        q = self.self_attn.q_proj(x).view(B, S, heads, D).transpose(1, 2)
        k = self.self_attn.k_proj(x).view(B, S, G, D).transpose(1, 2)
        v = self.self_attn.v_proj(x).view(B, S, G, D).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        """The layer's output [B, S, H] from its input state and [B, heads, S, D] attended to.

        The residual is the state as it came in, without its norm.
        """
        x = state + self.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3Head(PreTrainedModel):
    """The weights of a head; how they are run is the trainer's and the engine's affair.

    The embedding is the target's and no part of it.
    """

    config_class = LlamaConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = False

    def __init__(self, config: LlamaConfig):
        super().__init__(config)
        width, kept = config.hidden_size, config.draft_vocab_size
        self.fc = nn.Linear(3 * width, width, bias=False)
        self.midlayer = Layer(config)
        self.norm = nn.RMSNorm(width, config.rms_norm_eps)
        self.lm_head = nn.Linear(width, kept, bias=False)
        self.register_buffer("d2t", torch.zeros(kept, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.rotary = LlamaRotaryEmbedding(config)

    d2t: Tensor
    """[v]: the target's id less the head's own."""
    t2d: Tensor
    """[V]: whether the head covers the target's id."""

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def get_input_embeddings(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The target's; see the class."""

    @property
    def kept(self) -> Tensor:
        """The target's ids of the head's rows, ascending: [v]."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, features: Tensor) -> Tensor:
        """Features of the target [B, S, 3H], the lowest layer's first, as one state [B, S, H]."""
        return self.fc(features)


def head_width(config: LlamaConfig) -> int:
    """D, the width of an attention head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of [B, heads, S, D] by cos and sin [B or 1, S, D] (Su et al. 2021, §3.4)."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def head_config(target: Any, size: int) -> LlamaConfig:
    """The config of a head with `size` ids for the target of this (text) config.

    Its layer has the shape of the target's own, so that it can start as the last of them.
    """
    heads = target.num_attention_heads
    rotary = getattr(target, "rope_parameters", None) or {"rope_type": "default"}
    config = LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=getattr(target, "intermediate_size", None) or 4 * target.hidden_size,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        rms_norm_eps=getattr(target, "rms_norm_eps", 1e-5),
        max_position_embeddings=target.max_position_embeddings,
        rope_parameters=dict(rotary),
        tie_word_embeddings=False,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
    )
    config.draft_vocab_size = size
    config.architectures = [EAGLE3]
    return config


@torch.no_grad()
def make_head(config: LlamaConfig, kept: Tensor, target: PreTrainedModel) -> Eagle3Head:
    """A head for the target, float32 on the CPU; random weights come from torch's global generator.

    Its output rows are the target's for the `kept` ids [v]. Of a Llama-like target the layer starts
    as its last one, reading the highest feature, with random weights for the embedding beside it:
    that learns faster than a random layer (evaluate/RESULTS.md, heads). Of another family the layer
    is random, at the scale that the family's own start with.
    """
    head = Eagle3Head(config)
    for weight in head.parameters():
        if weight.ndim == 2:
            nn.init.normal_(weight, std=config.initializer_range)
        else:
            nn.init.ones_(weight)
    rows = target.get_output_embeddings().weight[kept.to(target.device)]  # pyright: ignore
    head.lm_head.weight.copy_(rows)
    inner: Any = target.base_model
    if type(getattr(inner, "norm", None)).__name__ in PLAIN_NORMS:
        _start_as_last(head, inner)
    head.d2t.copy_(kept - torch.arange(len(kept)))
    head.t2d[kept] = True
    return head.float()


def _start_as_last(head: Eagle3Head, inner: Any) -> None:
    """Copy the last decoder layer and the final norm; the fused state is the highest feature."""
    layer, last, width = head.midlayer, inner.layers[-1], head.config.hidden_size
    head.norm.weight.copy_(inner.norm.weight)
    head.fc.weight.zero_()
    head.fc.weight[:, 2 * width :].fill_diagonal_(1.0)
    layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
    layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, width:].copy_(getattr(last.self_attn, name).weight)
    layer.self_attn.o_proj.weight.copy_(last.self_attn.o_proj.weight)
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(getattr(last.mlp, name).weight)


def is_head(config: Any) -> bool:
    """Whether a folder's config is that of an EAGLE-3 head."""
    return EAGLE3 in (getattr(config, "architectures", None) or ())


def load_head(folder: Path, *, dtype: torch.dtype, device: torch.device | str) -> Eagle3Head:
    """A head in eval mode, from a folder as servers load it.

    Raises:
        UserError: a tensor is missing, unknown, or of another shape.
    """
    config = LlamaConfig.from_pretrained(folder)
    head = Eagle3Head(config)
    stored = load_file(folder / "model.safetensors")
    expected = {name: tensor.shape for name, tensor in head.state_dict().items()}
    found = {name: tensor.shape for name, tensor in stored.items()}
    if expected != found:
        wrong = sorted(n for n in expected | found if expected.get(n) != found.get(n))
        raise UserError(
            f"{folder} is no EAGLE-3 head of the common form: {wrong[0]} is "
            f"{tuple(found.get(wrong[0], ()))} and should be {tuple(expected.get(wrong[0], ()))}."
        )
    head.load_state_dict(stored)
    head.to(device, dtype)  # pyright: ignore[reportArgumentType, reportCallIssue]
    # The cast would round the angles, which are computed in float32 whatever the weights are.
    head.rotary = LlamaRotaryEmbedding(config).to(device)
    return head.eval()
