"""Distributions and models small enough for their laws to be written down.

Shapes: K drafted tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

V = 5
EOS = 1
"""The end token of the tiny models, so that ends come anywhere in a block."""
TINY: dict[str, Any] = {
    "vocab_size": 6,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}
"""The shape of the tiny models."""

Tables = list[Tensor]


def cases() -> dict[str, tuple[Tables, Tables]]:
    """Target and draft tables, [V]^(i+1) at step i, for the ways in which two laws can meet."""
    generator = torch.Generator().manual_seed(0)

    def random(steps: int, keep: int = V) -> Tables:
        return [_table(i, keep, generator) for i in range(steps)]

    same = random(3)
    even = [torch.eye(V, dtype=torch.float64)[i % 2].expand([V] * (i + 1)) for i in range(3)]
    odd = [torch.eye(V, dtype=torch.float64)[i % 2 + 2].expand([V] * (i + 1)) for i in range(3)]
    return {
        "one draft": (random(2), random(1)),
        "two drafts": (random(3), random(2)),
        "three drafts": (random(4), random(3)),
        "two tokens kept of each": (random(3, keep=2), random(2, keep=2)),
        "draft surer than target": (random(3), random(2, keep=1)),
        "target surer than draft": (random(3, keep=1), random(2)),
        "draft equal to target": (same, same[:2]),
        "never accepted": (even, odd[:2]),
        "always accepted": (even, even[:2]),
    }


def tiny_model(seed: int, layers: int) -> LlamaForCausalLM:
    """A model of six tokens, in float32, whose attention matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **TINY)).eval()


def _table(step: int, keep: int, generator: torch.Generator) -> Tensor:
    """A random law after each prefix of `step` tokens, over its `keep` likeliest tokens."""
    logits = 1.5 * torch.randn([V] * (step + 1), generator=generator, dtype=torch.float64)
    floor = logits.topk(keep, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < floor, -torch.inf).softmax(-1)
