"""The real embedded target in single precision: every path gives the same greedy tokens."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from distill.models.source import resolve_model
from distill.schema import ModelConfig
from distill.speculative.decode import decode
from distill.speculative.drafters import LayerDrafter, ModelDrafter
from distill.speculative.sampling import Sampling

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)
TEXTS = [
    "def fibonacci(n):\n",
    "The three laws of motion say that",
    "import json\n\n\nclass Reader:\n    def __init__(self, path):",
    "Once upon a time there was a small",
    "To bake bread one needs flour, water, salt and",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    cache = Path(os.environ.get("DISTILL_CACHE", "~/.cache/distill"))
    return resolve_model(ModelConfig(source="embedded", id="SmolLM2-135M-Instruct"), cache)


@pytest.fixture(scope="module")
def target(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(folder) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text).input_ids for text in TEXTS]


@pytest.fixture(scope="module")
def plain(target, prompts):
    return [decode(target, [p], sampling=GREEDY, max_new_tokens=32).tokens[0] for p in prompts]


def test_plain_equals_generate(target, prompts, plain):
    for prompt, tokens in zip(prompts, plain, strict=True):
        ids = torch.tensor([prompt])
        out = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=32,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert tokens == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("kind", ["layers", "model", "copy"])
def test_speculative_equals_plain(target, prompts, plain, kind, k):
    if kind == "layers":
        drafter = LayerDrafter(target, layers=20)
    elif kind == "copy":
        drafter = ModelDrafter(target)
    else:
        config = LlamaConfig(
            vocab_size=49152,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        drafter = ModelDrafter(LlamaForCausalLM(config).eval())
    out = decode(
        target,
        prompts,
        drafter=drafter,
        num_draft_tokens=k,
        sampling=GREEDY,
        max_new_tokens=32,
    )
    assert out.tokens == plain
    if kind == "copy":
        assert out.stats.alpha == 1
