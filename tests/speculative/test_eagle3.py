"""The engine's EAGLE-3 drafts against a naive implementation; faults that must and must not show."""

import pytest
import torch
from transformers import LlamaConfig

from distill.errors import UserError
from distill.models.eagle3 import Eagle3Head
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.forward import forward_for
from distill.speculative.sampling import Sampling
from tests.speculative import naive_eagle3
from tests.speculative.conftest import READS, SHAPE, built, eagle3_head, trained_head

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
                self.model, self._embedding, context, states, proposal.tokens[row].tolist()
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
