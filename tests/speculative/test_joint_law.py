"""The law of what the whole engine emits, sampled, with faults that have to show."""

import pytest
import torch

from distill.evaluate.exactness.controls import Foreseeing
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter, Proposal
from distill.speculative.round_length import Confident
from distill.speculative.rule import sample, speculative_rule
from distill.speculative.sampling import Sampling


def chi_squared(counts: torch.Tensor, law: torch.Tensor) -> float:
    expected = law * counts.sum()
    cells = expected > 0
    assert counts[~cells].sum() == 0
    return ((counts - expected)[cells].square() / expected[cells]).sum().item()


@pytest.mark.parametrize(
    ("fault", "fails"),
    [
        (None, False),
        ("residual", True),
        ("temperature", True),
        ("rollback", True),
        ("foresight", True),
    ],
)
@pytest.mark.parametrize("length", [2, Confident(2, 0.2)])
def test_the_joint_law_of_three_tokens(make_llama, fault, fails, length):
    """χ² of tokens 2 and 3 over 8,000 rows against the target's own law; four faults must show.

    24 degrees of freedom: a sound engine exceeds 60 once in 16,000 seeds.
    """
    N, prompt = 8_000, [1, 2]
    target, draft = make_llama(vocab_size=5), make_llama(7, vocab_size=5)
    sampling = Sampling(temperature=1.5)

    def no_residual(drafts, q, p, uniforms, counts):
        ruling = speculative_rule(drafts, q, p, uniforms, counts)
        rows = torch.arange(len(drafts))
        wrong = sample(p[rows, ruling.accepted], uniforms[:, -1])
        return ruling._replace(next_token=wrong)

    class Hot(ModelDrafter):
        def propose(self, k, keep_going=None):
            tokens, q = super().propose(k, keep_going)
            sharper = q**3
            return Proposal(tokens, sharper / sharper.sum(-1, keepdim=True))

    class OffByOne(RaggedCache):
        def rollback(self, lengths):
            super().rollback([max(0, n - 1) for n in lengths])

    if fault == "foresight":
        length = Foreseeing(2, 0.2)
    out = decode(
        target,
        [prompt] * N,
        drafter=Hot(draft) if fault == "temperature" else ModelDrafter(draft),
        num_draft_tokens=length,
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
    assert (chi_squared(counts, law.flatten()) > 60) == fails
