"""The engine's exactness with every form of a product of few rows."""

import pytest
import torch

from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.speculative.matmul_form import FORMS, WIDE_FORMS, forced
from distill.speculative.sampling import Sampling

GREEDY = Sampling(temperature=0)


@pytest.fixture(params=FORMS)
def form(request):
    with forced(request.param):
        yield request.param


@pytest.mark.parametrize("k", [1, 2, 4])
def test_greedy_equals_the_uncached_forward(form, target, draft, prompts, reference, k):
    settings = {"sampling": GREEDY, "max_new_tokens": 16}
    drafter = ModelDrafter(draft)
    plain = decode(target, prompts, **settings).tokens
    assert plain == [reference(target, prompt, 16) for prompt in prompts]
    batch = decode(target, prompts, drafter=drafter, num_draft_tokens=k, **settings).tokens
    assert batch == plain
    for prompt, tokens in zip(prompts, plain, strict=True):
        alone = decode(target, [prompt], drafter=drafter, num_draft_tokens=k, **settings)
        assert alone.tokens == [tokens]


def test_a_copy_as_draft_is_always_accepted_in_every_form(form, target, prompts):
    copy = ModelDrafter(target)
    for rows in (prompts[:1], prompts):
        out = decode(target, rows, drafter=copy, num_draft_tokens=4, max_new_tokens=20)
        assert out.stats.alpha == pytest.approx(1, abs=1e-5)
        assert out.stats.accepted == out.stats.tested > 0


def test_sampled_tokens_do_not_depend_on_the_form(form, target, draft, prompts):
    settings = {"drafter": ModelDrafter(draft), "num_draft_tokens": 3, "max_new_tokens": 20}
    got = decode(target, prompts, **settings).tokens
    with forced("linear"):
        assert got == decode(target, prompts, **settings).tokens


@pytest.mark.parametrize("form", [*FORMS, *WIDE_FORMS])
def test_a_bf16_copy_is_accepted_in_every_form(form, make_llama, prompts):
    """Half precision rounds passes over one and over k+1 tokens differently: alpha is nearly 1."""
    model = make_llama(attention_bias=True).bfloat16()
    with forced(form), torch.no_grad():
        out = decode(
            model, prompts, drafter=ModelDrafter(model), num_draft_tokens=4, max_new_tokens=20
        )
    assert out.stats.alpha == pytest.approx(1, abs=0.05)
