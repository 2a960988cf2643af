"""The law of what the whole engine emits, sampled, with faults that have to show."""

import pytest
import torch

from distill.evaluate.exactness.controls import Foreseeing, ShiftedFeatures, WrongIds
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter, Proposal
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.lookup import PromptLookup
from distill.speculative.round_length import Confident
from distill.speculative.rule import sample, speculative_rule
from distill.speculative.sampling import Sampling
from tests.speculative.conftest import READS, eagle3_head, llama


def chi_squared(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law * counts.sum()
    cells = expected > 0
    assert counts[~cells].sum() == 0
    return ((counts - expected)[cells].square() / expected[cells]).sum().item()


def drafter(kind: str, fault: str | None, target):
    """A drafter of this kind for a target of five ids, of which the head covers four."""
    if kind == "lookup":
        return PromptLookup()
    if kind == "model":
        return ModelDrafter(llama(7, vocab_size=5))
    cls = {"shifted": ShiftedFeatures, "ids": WrongIds}.get(fault or "", Eagle3Drafter)
    head = eagle3_head(torch.tensor([0, 1, 3, 4]), 7, vocab_size=5)
    return cls(head, target.get_input_embeddings().weight, READS)


def sharper(drafter):
    """Says that it drew from q³, renormalised: q at a third of the temperature."""
    propose = drafter.propose

    def wrong(k, keep_going=None):
        tokens, q, counts = propose(k, keep_going)
        return Proposal(tokens, q**3 / (q**3).sum(-1, keepdim=True), counts)

    drafter.propose = wrong
    return drafter


ALL, DRAWN = ("model", "eagle3", "lookup"), ("model", "eagle3")


@pytest.mark.parametrize(
    ("kind", "fault", "fails"),
    [
        *((kind, None, False) for kind in ALL),
        *((kind, "residual", True) for kind in ALL),
        *((kind, "rollback", True) for kind in ALL),
        *((kind, "temperature", True) for kind in DRAWN),
        *((kind, "foresight", True) for kind in DRAWN),
        ("eagle3", "shifted", False),
        ("eagle3", "ids", True),
    ],
)
@pytest.mark.parametrize("length", [2, Confident(2, 0.2)])
def test_the_joint_law_of_three_tokens(make_llama, kind, fault, fails, length):
    """χ² of tokens 2 and 3 over 8,000 rows against the target's own law; faults must show.

    24 degrees of freedom: a sound engine exceeds 60 once in 16,000 seeds.
    """
    N, prompt = 8_000, [1, 2, 1]
    target = make_llama(vocab_size=5)
    sampling = Sampling(temperature=1.5)
    guesses = drafter(kind, fault, target)

    def no_residual(drafts, q, p, uniforms, counts):
        ruling = speculative_rule(drafts, q, p, uniforms, counts)
        rows = torch.arange(len(drafts))
        wrong = sample(p[rows, ruling.accepted], uniforms[:, -1])
        return ruling._replace(next_token=wrong)

    class OffByOne(RaggedCache):
        def rollback(self, lengths):
            super().rollback([max(0, n - 1) for n in lengths])

    out = decode(
        target,
        [prompt] * N,
        drafter=sharper(guesses) if fault == "temperature" else guesses,
        num_draft_tokens=Foreseeing(2, 0.2) if fault == "foresight" else length,
        sampling=sampling,
        max_new_tokens=3,
        rule=no_residual if fault == "residual" else speculative_rule,
        cache_type=OffByOne if fault == "rollback" else RaggedCache,
    )
    law = torch.zeros(5, 5, dtype=torch.float64)
    with torch.no_grad():
        one = (target(input_ids=torch.tensor([prompt])).logits[0, -1].double() / 1.5).softmax(-1)
        for a in range(5):
            two = target(input_ids=torch.tensor([[*prompt, a]])).logits[0, -1].double() / 1.5
            for b in range(5):
                text = torch.tensor([[*prompt, a, b]])
                three = (target(input_ids=text).logits[0, -1].double() / 1.5).softmax(-1)
                law[b] += one[a] * two.softmax(-1)[b] * three
    pairs = torch.tensor(out.tokens)[:, 1:]
    counts = torch.bincount(pairs[:, 0] * 5 + pairs[:, 1], minlength=25).double()
    found = chi_squared(counts, law.flatten())
    assert (found > 60) == fails, found
