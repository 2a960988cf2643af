"""The engine's parallel drafts against plain forward passes over the text and its masks."""

import pytest
import torch

from distill.evaluate.exactness.controls import ShiftedMarginals
from distill.speculative.cache import RaggedCache
from distill.speculative.cached_model import CachedModel
from distill.speculative.decode import decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import ModelDrafter
from distill.speculative.parallel import ParallelDrafter
from distill.speculative.sampling import Sampling
from tests.speculative.conftest import FAMILIES, LLAMA_LIKE, VOCABULARY, built, llama, noisy_copy

GREEDY = Sampling(temperature=0)
MASK = VOCABULARY - 1


def naive_logits(model, context: list[int], k: int) -> torch.Tensor:
    """The logits [K, V] of k drafts: one whole row for each, and no cache."""
    rows = [context + [MASK] * masks for masks in range(k)]
    with torch.no_grad():
        each = [model(input_ids=torch.tensor([row]), use_cache=False).logits for row in rows]
    return torch.stack([logits[0, -1] for logits in each])


class Checked(ParallelDrafter):
    """Compares every proposal with the naive passes."""

    rounds = 0

    def propose(self, k, keep_going=None):
        contexts = [list(tokens) for tokens in self._live.contexts]
        proposal = super().propose(k, keep_going)
        for row, context in enumerate(contexts):
            logits = naive_logits(self.model, context, k)
            if proposal.q is None:
                best = logits.gather(1, proposal.tokens[row][:, None])[:, 0]
                torch.testing.assert_close(best, logits.amax(-1), atol=1e-4, rtol=1e-4)
            else:
                torch.testing.assert_close(
                    proposal.q[row].float(), logits.softmax(-1), atol=1e-4, rtol=0
                )
        self.rounds += 1
        return proposal


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("fixed", [False, True])
def test_every_draft_equals_the_naive_one(family, sampling, fixed, prompts):
    """Through ragged rows, any acceptance, and rows that end."""

    class Cache(RaggedCache):
        def __init__(self, batch, device, **_):
            super().__init__(batch, device, fixed=fixed)

    model = built(family)
    checked = Checked(model, MASK, Cache)
    out = decode(
        model,
        prompts,
        drafter=checked,
        num_draft_tokens=4,
        sampling=sampling,
        max_new_tokens=16,
    )
    accepted = [at.accepted for at in out.stats.per_position]
    assert checked.rounds >= 4
    # The model drafts for itself: its first guess is always right, those behind masks are not.
    first, second = out.stats.per_position[:2]
    assert accepted[0] == first.tested > 0
    assert second.alpha_sum < second.tested


def test_a_round_is_one_pass_whatever_k(target, prompts, monkeypatch):
    widths = []
    draft = noisy_copy()
    drafter = ParallelDrafter(draft, MASK)
    run = CachedModel.run

    def counted(self, tokens):
        if self is drafter._cached:
            widths.append(tokens.shape[1])
        return run(self, tokens)

    monkeypatch.setattr(CachedModel, "run", counted)
    out = decode(target, prompts, drafter=drafter, num_draft_tokens=5, max_new_tokens=20)
    # A round in which no row can use a draft has no such pass; every other has one.
    assert out.timing.draft_steps > 3 * len(widths)
    assert len(widths) <= out.timing.verify_steps
    # Up to 6 new tokens, and 4 masks that are never kept; fewer near the rows' ends.
    assert max(widths) <= 10


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_a_draft_with_a_shorter_context(target, reference, sampling):
    """Beyond it decoding goes on plainly, beside rows that still have room."""
    short = ParallelDrafter(llama(seed=3, max_position_embeddings=24), MASK)
    prompts = [list(range(10)), list(range(40)), list(range(20, 43))]
    settings = {"num_draft_tokens": 4, "sampling": sampling, "max_new_tokens": 30}
    out = decode(target, prompts, drafter=short, **settings)
    for i, prompt in enumerate(prompts):
        alone = decode(target, [prompt], drafter=short, row_ids=[i], **settings)
        assert alone.tokens[0] == out.tokens[i]
        if sampling is GREEDY:
            assert out.tokens[i] == reference(target, prompt, 30)
    first, second, _ = out.stats.per_prompt
    assert first.drafted > 0 < first.plain_passes
    assert (second.drafted, second.plain_passes) == (0, 30)


def test_requests_of_mixed_sampling_have_their_own_law(target, prompts):
    """Penalties see the drafts before; a greedy row's q is one-hot on its token."""
    mixed = [GREEDY, Sampling(top_p=0.8), Sampling(repetition_penalty=1.3, temperature=0.7)]

    class Shapes(ParallelDrafter):
        def propose(self, k, keep_going=None):
            proposal = super().propose(k, keep_going)
            assert proposal.q is not None
            torch.testing.assert_close(proposal.q.sum(-1), torch.ones_like(proposal.q[..., 0]))
            drawn = proposal.q.gather(-1, proposal.tokens[..., None])
            assert (drawn > 0).all()
            return proposal

    drafter = Shapes(noisy_copy(), MASK)
    out = decode(
        target, prompts, drafter=drafter, num_draft_tokens=3, sampling=mixed, max_new_tokens=20
    )
    plain = decode(target, prompts[:1], sampling=GREEDY, max_new_tokens=20)
    assert out.tokens[0] == plain.tokens[0]


def test_wrong_marginals_change_no_greedy_token(target, prompts):
    settings = {"num_draft_tokens": 3, "sampling": GREEDY, "max_new_tokens": 30}
    plain = decode(target, prompts, sampling=GREEDY, max_new_tokens=30)
    wrong = decode(target, prompts, drafter=ShiftedMarginals(noisy_copy(), MASK), **settings)
    assert wrong.tokens == plain.tokens


@pytest.mark.parametrize("family", LLAMA_LIKE[:2])
def test_drafter_for_knows_it_by_its_config(family):
    draft = FAMILIES[family]()
    assert type(drafter_for(draft, built("llama"))) is ModelDrafter
    draft.config.pard_token = MASK
    found = drafter_for(draft, built("llama"))
    assert isinstance(found, ParallelDrafter)
    assert found.mask_token == MASK
