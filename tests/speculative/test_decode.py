"""The whole engine on tiny models: exactness, batching, limits, counting, refusals."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from distill.speculative import cached_model
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import LayerDrafter, ModelDrafter
from distill.speculative.round_length import Confident
from distill.speculative.sampling import Sampling

GREEDY = Sampling(temperature=0)
EVERY_FEATURE = [
    Sampling(),
    Sampling(temperature=0.6),
    Sampling(top_k=5),
    Sampling(temperature=1.3, top_p=0.7),
    Sampling(min_p=0.2),
    Sampling(repetition_penalty=1.5),
    Sampling(frequency_penalty=0.8, presence_penalty=0.3),
    Sampling(min_new_tokens=6),
    GREEDY,
    Sampling(temperature=0, repetition_penalty=1.3),
]


def test_greedy_equals_generate_and_the_uncached_forward(any_model, prompts, reference):
    plain = decode(any_model, prompts, sampling=GREEDY, max_new_tokens=16).tokens
    for prompt, tokens in zip(prompts, plain, strict=True):
        assert tokens == reference(any_model, prompt, 16)
        generated = any_model.generate(
            torch.tensor([prompt]), max_new_tokens=16, do_sample=False, attention_mask=None
        )
        assert tokens == generated[0, len(prompt) :].tolist()
    for k in (1, 4):
        drafter = LayerDrafter(any_model, layers=2)
        fast = decode(
            any_model,
            prompts,
            drafter=drafter,
            num_draft_tokens=k,
            sampling=GREEDY,
            max_new_tokens=16,
        )
        assert fast.tokens == plain


@pytest.mark.parametrize("k", range(1, 9))
def test_greedy_equals_plain_for_every_k(target, make_drafter, prompts, k):
    plain = decode(target, prompts, sampling=GREEDY, max_new_tokens=40)
    fast = decode(
        target,
        prompts,
        drafter=make_drafter(),
        num_draft_tokens=k,
        sampling=GREEDY,
        max_new_tokens=40,
    )
    assert fast.tokens == plain.tokens
    assert 0 < fast.stats.alpha < 1
    assert fast.stats.alpha == fast.stats.alpha_empirical
    assert fast.stats.target_passes < plain.stats.target_passes == 120


@pytest.mark.parametrize("sampling", EVERY_FEATURE)
def test_a_copy_as_draft_is_always_accepted(target, prompts, sampling):
    """SD-RULE: the same processors on both sides, so alpha is 1 under every setting."""
    out = decode(
        target,
        prompts,
        drafter=ModelDrafter(target),
        num_draft_tokens=4,
        sampling=sampling,
        max_new_tokens=20,
        eos_token_ids=[3],
    )
    assert out.stats.alpha == pytest.approx(1, abs=1e-5)
    assert out.stats.accepted == out.stats.tested > 0


@pytest.mark.parametrize("sampling", EVERY_FEATURE)
def test_a_batch_equals_one_by_one(target, make_drafter, prompts, sampling):
    """SD-BATCH: the same tokens and counts, ragged acceptance or not."""

    def run(prompts, row_ids):
        return decode(
            target,
            prompts,
            drafter=make_drafter(),
            num_draft_tokens=3,
            sampling=sampling,
            max_new_tokens=25,
            eos_token_ids=[3, 50],
            row_ids=row_ids,
            seed=5,
        )

    together = run(prompts, [0, 1, 2])
    for i, prompt in enumerate(prompts):
        alone = run([prompt], [i])
        assert alone.tokens[0] == together.tokens[i]
        one, many = alone.stats.per_prompt[0], together.stats.per_prompt[i]
        assert (one.target_passes, one.drafted, one.tested, one.accepted, one.committed) == (
            many.target_passes,
            many.drafted,
            many.tested,
            many.accepted,
            many.committed,
        )
        assert one.alpha_sum == pytest.approx(many.alpha_sum, abs=1e-3)
        assert many.committed == len(together.tokens[i])


def test_mixed_temperatures_in_one_batch(target, make_drafter, prompts):
    """SD-T0: rows at 0, 1e-6 and 1; the first two are plain greedy."""
    settings = [GREEDY, Sampling(temperature=1e-6), Sampling()]
    out = decode(
        target,
        prompts,
        drafter=make_drafter(),
        num_draft_tokens=3,
        sampling=settings,
        max_new_tokens=20,
    )
    greedy = decode(target, prompts, sampling=GREEDY, max_new_tokens=20)
    assert out.tokens[:2] == greedy.tokens[:2]
    assert out.tokens[2] != greedy.tokens[2]


def test_another_seed_is_another_sample(target, prompts):
    one, same, other = (decode(target, prompts, seed=s, max_new_tokens=9).tokens for s in (0, 0, 1))
    assert one == same != other


@pytest.mark.parametrize("k", range(1, 9))
def test_end_token_inside_a_block(target, make_drafter, prompts, k):
    """EOS-MID: token 7 of the greedy output becomes one of two end ids."""
    free = decode(target, prompts[:1], sampling=GREEDY, max_new_tokens=20).tokens[0]
    end = free[6]
    out = decode(
        target,
        prompts[:1],
        drafter=make_drafter(),
        num_draft_tokens=k,
        sampling=GREEDY,
        max_new_tokens=20,
        eos_token_ids=[96, end],
    )
    assert out.tokens[0] == free[: free.index(end) + 1]
    record = out.stats.per_prompt[0]
    assert record.finish_reason == "eos"
    assert record.committed == len(out.tokens[0]) >= record.accepted


def test_the_end_token_of_the_draft_counts_for_nothing(target, draft, prompts):
    free = decode(target, prompts, sampling=GREEDY, max_new_tokens=20).tokens
    own_end = copy.deepcopy(draft)
    own_end.config.eos_token_id = free[0][1]
    out = decode(
        target,
        prompts,
        drafter=ModelDrafter(own_end),
        num_draft_tokens=3,
        sampling=GREEDY,
        max_new_tokens=20,
    )
    assert out.tokens == free


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_the_budget_is_exact(target, prompts, budget):
    out = decode(
        target,
        prompts,
        drafter=ModelDrafter(target),
        num_draft_tokens=4,
        sampling=GREEDY,
        max_new_tokens=budget,
    )
    assert [len(tokens) for tokens in out.tokens] == [budget] * 3
    assert {record.finish_reason for record in out.stats.per_prompt} == {"length"}
    assert out.stats.drafted <= 3 * (budget - 1)


def test_the_context_of_the_target_ends_a_row(target, make_drafter, reference):
    prompt = [n % 90 for n in range(120)]
    out = decode(
        target,
        [prompt, prompt[:100]],
        drafter=make_drafter(),
        num_draft_tokens=5,
        sampling=GREEDY,
        max_new_tokens=20,
    )
    assert out.tokens == [reference(target, prompt, 8), reference(target, prompt[:100], 20)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_draft_with_a_shorter_context(target, make_llama, family, reference):
    """Beyond it decoding goes on plainly, and those passes are counted apart."""
    if family == "llama":
        short = make_llama(max_position_embeddings=24)
    else:
        config = GPT2Config(
            vocab_size=97,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=24,
            bos_token_id=None,
            eos_token_id=None,
        )
        short = GPT2LMHeadModel(config).eval()
    prompts = [list(range(10)), list(range(40)), list(range(20, 43))]
    out = decode(
        target,
        prompts,
        drafter=ModelDrafter(short),
        num_draft_tokens=4,
        sampling=GREEDY,
        max_new_tokens=30,
    )
    assert out.tokens == [reference(target, prompt, 30) for prompt in prompts]
    first, second, _ = out.stats.per_prompt
    assert first.drafted > 0 < first.plain_passes
    assert (second.drafted, second.plain_passes) == (0, 30)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_the_drafts_cache_is_never_out_of_step(target, draft, prompts, sampling):
    """SD-CACHE: every q equals one recomputed without a cache, through acceptance and rejection."""
    seen = {"rounds": 0, "all": 0, "none": 0}

    class Checked(ModelDrafter):
        def propose(self, k, keep_going=None):
            before = [list(tokens) for tokens in self._live.contexts]
            proposal = super().propose(k, keep_going)
            for row, tokens in enumerate(before):
                whole = torch.tensor([tokens + proposal.tokens[row].tolist()])
                logits = self.model(input_ids=whole, use_cache=False).logits[0, -k - 1 : -1]
                if proposal.q is None:
                    assert logits.argmax(-1).tolist() == proposal.tokens[row].tolist()
                else:
                    torch.testing.assert_close(
                        proposal.q[row], logits.softmax(-1), atol=1e-5, rtol=0
                    )
            return proposal

        def commit(self, accepted):
            seen["rounds"] += 1
            seen["all"] += max(accepted) == 2
            seen["none"] += min(accepted) == 0
            super().commit(accepted)

    decode(
        target,
        prompts,
        drafter=Checked(draft),
        num_draft_tokens=2,
        sampling=sampling,
        max_new_tokens=100,
    )
    assert seen["rounds"] >= 40
    assert seen["all"] > 3 < seen["none"]


def test_padded_heads(make_llama, prompts):
    """VOC-PAD: heads of 90 real ids padded to 112 and 104, with loud padding; both ways round."""
    real = 90
    narrow, other = make_llama(vocab_size=real), make_llama(3, vocab_size=real)
    for sizes in ((112, 104), (104, 112)):
        padded = []
        for model, size in zip((narrow, other), sizes, strict=True):
            wide = make_llama(vocab_size=size)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            for name in ("model.embed_tokens.weight", "lm_head.weight"):
                noise = 3 * torch.randn(size - real, 32)
                state[name] = torch.cat((state[name], noise))
            wide.load_state_dict(state)
            padded.append(wide)
        for sampling in (GREEDY, Sampling()):
            settings = {"num_draft_tokens": 3, "sampling": sampling, "max_new_tokens": 15}
            expected = decode(narrow, prompts, drafter=ModelDrafter(other), **settings)
            with pytest.warns(UserWarning, match="outside the 90 shared ids"):
                got = decode(
                    padded[0],
                    prompts,
                    drafter=ModelDrafter(padded[1]),
                    vocabulary_size=real,
                    **settings,
                )
            assert got.tokens == expected.tokens
            assert got.stats.alpha == pytest.approx(expected.stats.alpha, abs=1e-5)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("policy", [Confident(6, threshold=0.02)])
def test_a_varying_length_changes_the_cost_not_the_output(
    target, make_drafter, prompts, policy, sampling
):
    settings = {"drafter": make_drafter(), "num_draft_tokens": policy, "sampling": sampling}
    out = decode(target, prompts, max_new_tokens=40, **settings)
    if sampling is GREEDY:
        assert out.tokens == decode(target, prompts, sampling=GREEDY, max_new_tokens=40).tokens
    alone = [
        decode(target, [p], row_ids=[i], max_new_tokens=40, **settings).tokens[0]
        for i, p in enumerate(prompts)
    ]
    assert out.tokens == alone
    assert out.stats.drafted < 6 * out.stats.target_passes


def test_layer_drafter_shares_weights_and_changes_nothing(any_model, prompts):
    before = {name: value.clone() for name, value in any_model.state_dict().items()}
    layers = any_model.config.num_hidden_layers
    drafter = LayerDrafter(any_model, layers=1)
    decode(any_model, prompts, drafter=drafter, num_draft_tokens=2, max_new_tokens=5)
    assert any_model.config.num_hidden_layers == layers
    ours = {parameter.data_ptr() for parameter in any_model.parameters()}
    assert {parameter.data_ptr() for parameter in drafter.model.parameters()} < ours
    for name, value in any_model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_training_mode_is_restored(make_llama, prompts):
    target, draft = make_llama(attention_dropout=0.5), make_llama(1)
    target.train()
    draft.model.layers[0].train()
    out = decode(
        target,
        prompts,
        drafter=ModelDrafter(draft),
        num_draft_tokens=2,
        sampling=GREEDY,
        max_new_tokens=8,
    )
    assert target.training
    assert target.model.training
    assert draft.model.layers[0].training
    assert not draft.training
    target.eval()
    assert out.tokens == decode(target, prompts, sampling=GREEDY, max_new_tokens=8).tokens


def test_timing_adds_up(target, make_drafter, prompts):
    timing = decode(
        target, prompts, drafter=make_drafter(), num_draft_tokens=2, max_new_tokens=20
    ).timing
    assert timing.prefill_seconds > 0
    assert 0 < timing.draft_seconds + timing.verify_seconds <= timing.decode_seconds


def test_fixed_shapes_decode_the_same(target, make_drafter, prompts):
    """The path that CUDA graphs capture, without capturing."""
    expected = decode(
        target, prompts, drafter=make_drafter(), num_draft_tokens=3, max_new_tokens=30
    )

    class Fixed(RaggedCache):
        def __init__(self, batch, device, *, fixed=False):
            super().__init__(batch, device, fixed=True)

    got = decode(
        target,
        prompts,
        drafter=make_drafter(Fixed),
        num_draft_tokens=3,
        max_new_tokens=30,
        cache_type=Fixed,
    )
    assert got.tokens == expected.tokens


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_prompts_of_one_token(target, make_drafter, sampling):
    """A head has no features yet: the first pass is a plain one."""
    settings = {"num_draft_tokens": 3, "sampling": sampling, "max_new_tokens": 12}
    prompts = [[5], [1, 2, 3], [9]]
    out = decode(target, prompts, drafter=make_drafter(), **settings)
    alone = [
        decode(target, [p], drafter=make_drafter(), row_ids=[i], **settings).tokens[0]
        for i, p in enumerate(prompts)
    ]
    assert out.tokens == alone
    if sampling is GREEDY:
        plain = decode(target, prompts, sampling=GREEDY, max_new_tokens=12)
        assert out.tokens == plain.tokens


def test_prompts_longer_than_a_chunk(target, make_drafter, prompts, monkeypatch):
    """The states of the prompts come in chunks, in which shorter rows have no part."""
    settings = {"num_draft_tokens": 3, "max_new_tokens": 20}
    whole = decode(target, prompts, drafter=make_drafter(), **settings)
    monkeypatch.setattr(cached_model, "PREFILL_WIDTH", 3)
    chunks = decode(target, prompts, drafter=make_drafter(), **settings)
    assert chunks.tokens == whole.tokens
    assert chunks.stats.alpha == pytest.approx(whole.stats.alpha, abs=1e-5)


def test_no_prompts_is_no_work(target):
    assert decode(target, []).tokens == []
