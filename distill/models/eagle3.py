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

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from distill.errors import UserError

ARCHITECTURE = "LlamaForCausalLMEagle3"
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
        queries, keys = config.num_attention_heads * D, config.num_key_value_heads * D
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


def keep_ids(counts: Tensor, size: int, always: tuple[int, ...]) -> Tensor:
    """The `size` ids that a reduced vocabulary keeps, ascending: [size].

    counts: how often the target's own text has each id, [V]. always: ids that are kept whatever
    their count, such as the end tokens.

    Raises:
        UserError: the size is not between the ids that must be kept and V.
    """
    if not len(always) < size <= len(counts):
        raise UserError(
            f"draft.vocabulary is {size}: use more than the {len(always)} special ids that the "
            f"target emits and at most its {len(counts)} ids, or null for all of them."
        )
    ranks = counts.double()
    ranks[list(always)] = torch.inf
    # Of equal counts the smaller id comes first, so that the choice is the same on any machine.
    return ranks.argsort(descending=True, stable=True)[:size].sort().values
