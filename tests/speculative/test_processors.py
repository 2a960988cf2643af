"""The distribution equals what transformers' `generate` would sample from."""

import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, TopPLogitsWarper

from distill.errors import UserError
from distill.speculative.processors import Distribution, NucleusWarper
from distill.speculative.sampling import Sampling

V = 30
CPU = torch.device("cpu")
NO_DRAFTS = torch.zeros((1, 0), dtype=torch.long)


def probabilities(sampling, logits, context, drafts=NO_DRAFTS, prompt_length=None, eos=()):
    distribution = Distribution([sampling], [prompt_length or len(context)], eos, CPU)
    return distribution(logits, [context], drafts)[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.6},
        {"min_p": 0.1},
        {"repetition_penalty": 1.4},
        {"min_new_tokens": 3},
        {"temperature": 1.5, "top_k": 9, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 0.8},
    ],
)
def test_equals_generate(settings):
    torch.manual_seed(0)
    context, logits = [3, 3, 8, 1], 3 * torch.randn(1, 1, V)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=V,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        )
    )
    config = GenerationConfig(do_sample=True, top_k=0, eos_token_id=7)
    config.update(**settings)
    model._prepare_special_tokens(config)
    chain = model._get_logits_processor(config, input_ids_seq_length=4)
    expected = chain(torch.tensor([context]), logits[0]).softmax(-1)
    actual = probabilities(Sampling(**settings), logits, context, eos=[7])
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9, 0.999999])
@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_the_quick_nucleus_is_transformers_nucleus(top_p, sharpness):
    """Sharp rows are settled among the first tokens, flat ones by the full sort."""
    torch.manual_seed(0)
    scores = sharpness * torch.randn(4, 5000, dtype=torch.float64)
    expected = TopPLogitsWarper(top_p)(NO_DRAFTS, scores.clone())
    assert torch.equal(NucleusWarper(top_p)(NO_DRAFTS, scores), expected)


def test_frequency_and_presence_count_the_output_only():
    """Output [4, 4, 6]: 4 loses 2f + p, 6 loses f + p; the prompt's 9 loses nothing."""
    logits = torch.zeros(1, 1, V)
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=0.25)
    got = probabilities(sampling, logits, [9, 4, 4, 6], prompt_length=1)[0].log()
    got = got - got[0]
    assert got[[4, 6, 9]].tolist() == pytest.approx([-1.25, -0.75, 0.0], abs=1e-6)


def test_the_drafted_prefix_is_part_of_the_context():
    """Position s sees the first s drafts: the same as a context that holds them."""
    torch.manual_seed(0)
    logits, drafts = torch.randn(1, 3, V), torch.tensor([[4, 5]])
    sampling = Sampling(repetition_penalty=2.0, frequency_penalty=0.3, min_new_tokens=2)
    got = probabilities(sampling, logits, [1, 2], drafts, 2, [7])
    for s in range(3):
        alone = probabilities(
            sampling, logits[:, s : s + 1], [1, 2, 4, 5][: 2 + s], NO_DRAFTS, 2, [7]
        )
        torch.testing.assert_close(got[s], alone[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_best_token_is_the_first_of_equals(dtype):
    """Half precision has many ties at the top; transformers' greedy search takes the first."""
    torch.manual_seed(0)
    logits = torch.randint(4, (64, 3, 50_000)).to(dtype)
    drafts = torch.zeros((64, 2), dtype=torch.long)
    distribution = Distribution([Sampling(0)] * 64, [1] * 64, (), CPU)
    assert torch.equal(distribution.best(logits, [[1]] * 64, drafts), logits.argmax(-1))


def test_mixed_settings_in_one_batch():
    torch.manual_seed(0)
    logits = torch.randn(4, 2, V)
    settings = [Sampling(), Sampling(temperature=0), Sampling(top_k=3), Sampling(temperature=0)]
    drafts = torch.zeros((4, 1), dtype=torch.long)
    mixed = Distribution(settings, [1] * 4, (), CPU)(logits, [[1]] * 4, drafts)
    for row, sampling in enumerate(settings):
        alone = probabilities(sampling, logits[row : row + 1], [1], drafts[:1])
        torch.testing.assert_close(mixed[row], alone)


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-30])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_vanishing_temperature_is_one_hot(temperature, dtype):
    """SD-T0: no division by (nearly) zero."""
    logits = torch.tensor([[[1.0, 3.0, 2.0]]], dtype=dtype)
    assert probabilities(Sampling(temperature), logits, [1])[0].tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_give_single_precision_probabilities(dtype):
    logits = torch.randn(1, 1, V).to(dtype)
    got = probabilities(Sampling(0.5, top_p=0.9), logits, [1])
    assert got.dtype == torch.float32
    assert got.sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_k": -1},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"min_new_tokens": -1},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        Sampling(**settings)


def test_rows_of_many_kinds_and_lengths_in_one_batch_are_as_if_alone():
    """Rows are processed in groups: by setting, prompt length and context length."""
    torch.manual_seed(0)
    looks = Sampling(repetition_penalty=1.7, frequency_penalty=0.4, min_new_tokens=2)
    settings = [looks, Sampling(), looks, looks, Sampling(presence_penalty=0.6), looks]
    prompts = [2, 1, 2, 3, 2, 2]
    contexts = [[5, 6], [5], [8, 9], [1, 2, 3], [5, 6, 5], [4, 4, 4, 9]]
    logits, drafts = torch.randn(6, 3, V), torch.randint(V, (6, 2))
    distribution = Distribution(settings, prompts, [7], CPU)
    kept = [5, 0, 2, 3, 4]
    everyone = distribution(logits, contexts, drafts)
    distribution.keep(kept)
    some = distribution(logits[kept], [contexts[row] for row in kept], drafts[kept])
    for row in range(6):
        alone = probabilities(
            settings[row],
            logits[row : row + 1],
            contexts[row],
            drafts[row : row + 1],
            prompts[row],
            [7],
        )
        torch.testing.assert_close(everyone[row], alone)
    torch.testing.assert_close(some, everyone[kept])
