"""The tiny models of the tests: random weights, no download."""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from distill.models.eagle3 import Eagle3Head

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def tiny_config(**changes: Any) -> LlamaConfig:
    """A configuration of two narrow layers, less what `changes` says otherwise."""
    return LlamaConfig(**SHAPE | changes)


def tiny_llama(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """Its model in eval mode; the same seed and changes give the same weights."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(tiny_config(**changes)).eval()


def tiny_head(kept: torch.Tensor, seed: int = 0, **changes: Any) -> Eagle3Head:
    """An EAGLE-3 head in eval mode for such a model, over these of its ids [v], ascending."""
    torch.manual_seed(seed)
    head = Eagle3Head(tiny_config(draft_vocab_size=len(kept), **changes)).eval()
    head.d2t.copy_(kept - torch.arange(len(kept)))
    head.t2d[kept] = True
    return head
