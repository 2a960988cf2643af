"""What decides, token by token, how long a round is. Numbers worked by hand."""

import torch

from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.speculative.lengths import Confident, varying_lengths
from distill.speculative.pacing import ConfidentLengths
from distill.speculative.sampling import Sampling


def test_a_fixed_k_needs_no_deciding():
    assert varying_lengths(3, rows=2) is None


def test_a_row_ends_behind_its_first_token_below_the_threshold():
    lengths = ConfidentLengths(rows=3, threshold=0.5)
    lengths.begin(0.1)
    assert lengths(torch.tensor([0.9, 0.4, 0.5]))
    assert lengths(torch.tensor([0.6, 0.9, 0.3]))
    assert not lengths(torch.tensor([0.1, 0.9, 0.9]))
    # Row 1 ended at its first token: what is drawn behind it, for others' sake, is not its own.
    assert lengths.counts == [3, 1, 2]


def test_every_round_starts_afresh_and_rows_can_leave():
    lengths = ConfidentLengths(rows=2, threshold=0.5)
    lengths.begin(0.1)
    lengths(torch.tensor([0.1, 0.1]))
    lengths.keep([1])
    lengths.begin(0.1)
    assert lengths(torch.tensor([0.7]))
    assert lengths.counts == [1]


def test_threshold_0_always_drafts_k_and_1_never_a_second_token(target, draft, prompts):
    def drafted(threshold):
        out = decode(
            target,
            prompts[:1],
            drafter=ModelDrafter(draft),
            num_draft_tokens=Confident(3, threshold),
            sampling=Sampling(),
            max_new_tokens=20,
        )
        return out.stats

    always, never = drafted(0.0), drafted(1.0)
    fixed = decode(
        target,
        prompts[:1],
        drafter=ModelDrafter(draft),
        num_draft_tokens=3,
        sampling=Sampling(),
        max_new_tokens=20,
    )
    assert always == fixed.stats
    assert never.drafted <= never.target_passes


def test_confidence_is_the_drawn_token_s_probability(target, draft, prompts, monkeypatch):
    """A sampled token's is q(x); with greedy rows, whose q is one-hot, it is of the raw logits."""
    seen = []
    proceed = ConfidentLengths.__call__
    monkeypatch.setattr(
        ConfidentLengths,
        "__call__",
        lambda self, confidence: seen.append(confidence) or proceed(self, confidence),
    )
    greedy, sampled = Sampling(temperature=0), Sampling(temperature=0.5)

    class Recording(ModelDrafter):
        def propose(self, k, keep_going=None):
            proposal = super().propose(k, keep_going)
            drawn.append(proposal)
            return proposal

    with torch.no_grad():
        logits = [draft(input_ids=torch.tensor([prompt])).logits[0, -1] for prompt in prompts[:2]]
    raw = torch.stack(logits).softmax(-1)
    for settings in ([sampled, sampled], [greedy, sampled], [greedy, greedy]):
        drawn, seen[:] = [], []
        decode(
            target,
            prompts[:2],
            drafter=Recording(draft),
            num_draft_tokens=Confident(1, 0.5),
            sampling=settings,
            max_new_tokens=3,
        )
        first = drawn[0]
        of = raw if greedy in settings else first.q[:, 0]
        expected = of.gather(1, first.tokens.clone())[:, 0]
        torch.testing.assert_close(seen[0], expected, check_dtype=False)
