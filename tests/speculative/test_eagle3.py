"""The engine's EAGLE-3 drafts against a naive implementation, and what it refuses."""

import pytest
import torch

from distill.errors import UserError
from distill.evaluate.exactness.controls import ShiftedFeatures, WrongIds
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.forward import forward_for
from distill.speculative.sampling import Sampling
from tests import naive_eagle3
from tests.speculative.conftest import READS, built, eagle3_head, trained_head

GREEDY = Sampling(temperature=0)
KEPT = torch.arange(0, 97, 2)


def drafter(cls=Eagle3Drafter, cache_type=RaggedCache):
    embedding = built("llama").get_input_embeddings().weight
    return cls(trained_head(), embedding, READS, cache_type)


class Checked(Eagle3Drafter):
    """Compares every proposal with the naive chain over features of a plain pass."""

    rounds = 0

    def propose(self, k, keep_going=None):
        contexts = [list(tokens) for tokens in self._live.contexts]
        proposal = super().propose(k, keep_going)
        for row, context in enumerate(contexts):
            states = naive_eagle3.features(built("llama"), context, READS)[:-1]
            drafts, logits = naive_eagle3.chain(
                self.model, self.embedding, context, states, proposal.tokens[row].tolist()
            )
            if proposal.q is None:
                assert proposal.tokens[row].tolist() == drafts
                continue
            q = torch.zeros(k, 97).index_copy_(1, self.model.kept, torch.stack(logits).softmax(-1))
            torch.testing.assert_close(proposal.q[row], q, atol=1e-5, rtol=0)
        self.rounds += 1
        return proposal


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(presence_penalty=1e-9)])
@pytest.mark.parametrize("fixed", [False, True])
def test_every_draft_equals_the_naive_one(target, prompts, sampling, fixed):
    """Also where ids are drawn among all of V, as a penalty asks; through any acceptance."""

    class Cache(RaggedCache):
        def __init__(self, batch, device, **_):
            super().__init__(batch, device, fixed=fixed)

    checked = drafter(Checked, Cache)
    out = decode(
        target,
        prompts,
        drafter=checked,
        num_draft_tokens=4,
        sampling=sampling,
        max_new_tokens=30,
    )
    accepted = [at.accepted for at in out.stats.per_position]
    assert checked.rounds > 10
    assert accepted[0] > accepted[1] > 0


def test_the_target_is_never_run_for_the_head(target, prompts, monkeypatch):
    """Passes of the target are as many as rounds, and one for the prompts."""
    passes = []
    kind = type(forward_for(target))
    call = kind.__call__

    def counted(self, tokens, *args, **kwargs):
        passes.append(tokens.shape[1])
        return call(self, tokens, *args, **kwargs)

    monkeypatch.setattr(kind, "__call__", counted)
    out = decode(target, prompts, drafter=drafter(), num_draft_tokens=2, max_new_tokens=20)
    assert len(passes) == 1 + out.timing.verify_steps


@pytest.mark.parametrize("kind", [ShiftedFeatures, WrongIds])
def test_wrong_features_or_q_change_no_greedy_token(target, prompts, kind):
    settings = {"num_draft_tokens": 3, "sampling": GREEDY, "max_new_tokens": 40}
    right = decode(target, prompts, drafter=drafter(), **settings)
    wrong = decode(target, prompts, drafter=drafter(kind), **settings)
    assert wrong.tokens == right.tokens
    if kind is ShiftedFeatures:
        assert wrong.stats.alpha < right.stats.alpha - 0.1


def test_no_probability_outside_the_reduced_vocabulary(target, prompts):
    """Nor outside the ids that are shared, where these are fewer than the head's."""

    class Checked(Eagle3Drafter):
        def propose(self, k, keep_going=None):
            proposal = super().propose(k, keep_going)
            kept = set(self.model.kept.tolist())
            outside = [token for token in range(90) if token not in kept]
            assert proposal.q is not None
            assert proposal.q.shape[-1] == 90
            assert proposal.q[..., outside].abs().max() == 0
            torch.testing.assert_close(proposal.q.sum(-1), torch.ones(proposal.q.shape[:2]))
            assert set(proposal.tokens.flatten().tolist()) <= kept & set(range(90))
            return proposal

    mixed = [Sampling(), Sampling(top_p=0.8), Sampling(repetition_penalty=1.2)]
    with pytest.warns(UserWarning, match="outside the 90 shared ids"):
        decode(
            target,
            prompts,
            drafter=drafter(Checked),
            num_draft_tokens=3,
            sampling=mixed,
            max_new_tokens=20,
            vocabulary_size=90,
        )


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_a_head_with_a_shorter_context(target, reference, sampling):
    """Beyond it decoding goes on plainly, beside rows that still have room."""
    head = eagle3_head(KEPT, max_position_embeddings=24)
    short = Eagle3Drafter(head, target.get_input_embeddings().weight, READS)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(make_llama, prompts, dtype):
    target, head = make_llama().to(dtype), eagle3_head(KEPT).to(dtype)
    out = decode(
        target,
        prompts,
        drafter=Eagle3Drafter(head, target.get_input_embeddings().weight, READS),
        num_draft_tokens=2,
        max_new_tokens=12,
    )
    assert [len(tokens) for tokens in out.tokens] == [12] * 3


def test_weights_that_were_trained_since_are_taken(target, prompts):
    head = eagle3_head(KEPT)
    one = Eagle3Drafter(head, target.get_input_embeddings().weight, READS)
    settings = {"num_draft_tokens": 2, "max_new_tokens": 12}
    before = decode(target, prompts, drafter=one, **settings)
    for parameter in head.parameters():
        parameter.data = parameter.data + 0.1 * torch.randn_like(parameter)
    after = decode(target, prompts, drafter=one, **settings)
    fresh = Eagle3Drafter(head, target.get_input_embeddings().weight, READS)
    assert after.stats == decode(target, prompts, drafter=fresh, **settings).stats
    assert after.stats != before.stats


def test_drafter_for_gives_each_kind_its_drafter(make_llama):
    target = make_llama(num_hidden_layers=8)
    assert isinstance(drafter_for(make_llama(), target), ModelDrafter)
    found = drafter_for(eagle3_head(KEPT), target)
    assert isinstance(found, Eagle3Drafter)
    assert found.reads == (2, 4, 5)
    assert found.head_size == 97


def test_a_head_that_does_not_fit_is_refused(make_llama):
    target = make_llama(num_hidden_layers=8)
    with pytest.raises(UserError, match="6 or more"):
        drafter_for(eagle3_head(KEPT), make_llama())
    with pytest.raises(UserError, match="width 16"):
        drafter_for(eagle3_head(KEPT, hidden_size=16), target)
    dynamic = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    with pytest.raises(UserError, match="dynamic rotary"):
        drafter_for(eagle3_head(KEPT, rope_parameters=dynamic), target)
