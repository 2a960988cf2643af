"""Tiny random models, one per kind of family that the engine has to carry."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from distill.models.eagle3 import Eagle3Head
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import Drafter, ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.lookup import PromptLookup
from distill.speculative.parallel import ParallelDrafter
from distill.speculative.sampling import Sampling
from tests import naive_eagle3

PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9], list(range(20, 37))]
VOCABULARY = 97
CONTEXT = 128

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def llama(seed: int = 0, **changes) -> PreTrainedModel:
    return build(LlamaForCausalLM, LlamaConfig(**{**SHAPE, **changes}), seed)


def build(cls, config, seed: int = 0) -> PreTrainedModel:
    """A random model whose logits are far from uniform (std 0.3, biases too)."""
    torch.manual_seed(seed)
    model = cls(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def _sliding(**changes):
    return {**SHAPE, "sliding_window": 6, **changes}


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": llama,
    "llama-biased": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama-yarn": lambda: llama(rope_parameters=YARN),
    "llama-llama3": lambda: llama(rope_parameters=LLAMA3),
    "qwen2": lambda: build(Qwen2ForCausalLM, Qwen2Config(**SHAPE)),
    "qwen2-sliding": lambda: build(
        Qwen2ForCausalLM, Qwen2Config(**_sliding(use_sliding_window=True, max_window_layers=1))
    ),
    "qwen3": lambda: build(Qwen3ForCausalLM, Qwen3Config(**SHAPE)),
    "mistral-sliding": lambda: build(MistralForCausalLM, MistralConfig(**_sliding())),
    "gemma2": lambda: build(Gemma2ForCausalLM, Gemma2Config(**_sliding())),
    "gemma3": lambda: build(
        Gemma3ForCausalLM,
        Gemma3TextConfig(
            **_sliding(layer_types=["sliding_attention", "full_attention", "sliding_attention"])
        ),
    ),
    "gpt2": lambda: build(
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=CONTEXT,
            bos_token_id=None,
            eos_token_id=None,
        ),
    ),
    "opt": lambda: build(
        OPTForCausalLM,
        OPTConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
    ),
}
OF_LLAMA_FORWARD = ("llama", "qwen2", "qwen3", "mistral")
LLAMA_LIKE = [name for name in FAMILIES if name.split("-")[0] in OF_LLAMA_FORWARD]


@functools.cache
def built(name: str) -> PreTrainedModel:
    return FAMILIES[name]()


@pytest.fixture(params=FAMILIES)
def any_model(request) -> PreTrainedModel:
    return built(request.param)


@pytest.fixture(params=LLAMA_LIKE)
def llama_like(request) -> PreTrainedModel:
    return built(request.param)


@pytest.fixture
def make_llama() -> Callable[..., PreTrainedModel]:
    """Build a tiny Llama: `make_llama(seed=0, **config_changes)`."""
    return llama


@pytest.fixture
def prompts() -> list[list[int]]:
    """Three prompts of different lengths (SD-BATCH)."""
    return [list(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="session")
def target() -> PreTrainedModel:
    return built("llama")


@pytest.fixture(scope="session")
def draft() -> PreTrainedModel:
    return noisy_copy()


@functools.cache
def noisy_copy() -> PreTrainedModel:
    """The target with some noise on it: it agrees sometimes."""
    model = llama()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.015 * torch.randn_like(parameter))
    return model


READS = (1, 2, 3)
"""Of the tiny target of three layers; the last of them is read behind the final norm."""


def eagle3_head(kept: Tensor, seed: int = 0, **changes) -> Eagle3Head:
    """A random head over these ids [v], ascending."""
    config = LlamaConfig(**{**SHAPE, "draft_vocab_size": len(kept), **changes})
    head = build(Eagle3Head, config, seed)
    head.d2t.copy_(kept - torch.arange(len(kept)))
    head.t2d[kept] = True
    return head


@functools.cache
def trained_head() -> Eagle3Head:
    """A head over 80 of 97 ids that knows what the target says greedily to some of the prompts."""
    target = built("llama")
    greedy = decode(target, PROMPTS, sampling=Sampling(temperature=0), max_new_tokens=40).tokens
    texts = [prompt + answer for prompt, answer in zip(PROMPTS, greedy, strict=True)]
    torch.manual_seed(0)
    kept = torch.randperm(VOCABULARY)[:80].sort().values
    head = eagle3_head(kept)
    for parameter in head.parameters():
        parameter.data = parameter.data / 3 if parameter.dim() > 1 else parameter.data
    optimiser = torch.optim.Adam(head.parameters(), 1e-2)
    embedding = target.get_input_embeddings().weight.detach()
    data = []
    for tokens in texts:
        states = naive_eagle3.features(target, tokens, READS)
        with torch.no_grad():
            wanted = target(torch.tensor([tokens])).logits[0, 1:].softmax(-1)[:, kept]
        data.append((torch.tensor(tokens[1:]), states[:-1], wanted))
    for step in range(90):
        following, states, wanted = data[step % len(data)]
        inputs, loss = head.fc(states), torch.zeros(())
        for _ in range(3):  # true features, then own states that are one and two steps old
            out = naive_eagle3.outputs(head, embedding, following, inputs)
            loss = loss - (wanted * naive_eagle3.logits(head, out).log_softmax(-1)).sum(-1).mean()
            inputs = torch.cat((inputs[:1], out[:-1]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head.eval()


KINDS: dict[str, Callable[..., Drafter]] = {
    "model": lambda cache_type=RaggedCache: ModelDrafter(noisy_copy(), cache_type),
    "eagle3": lambda cache_type=RaggedCache: Eagle3Drafter(
        trained_head(), built("llama").get_input_embeddings().weight, READS, cache_type
    ),
    "parallel": lambda cache_type=RaggedCache: ParallelDrafter(
        noisy_copy(), VOCABULARY - 1, cache_type
    ),
    "lookup": lambda cache_type=RaggedCache: PromptLookup(),
}
"""A drafter of each kind for `target`, over a cache of a given type."""


@pytest.fixture(params=KINDS)
def make_drafter(request) -> Callable[..., Drafter]:
    return KINDS[request.param]


@pytest.fixture
def reference() -> Callable[[PreTrainedModel, list[int], int], list[int]]:
    return greedy_reference


def greedy_reference(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation by whole forward passes, without any cache."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]
