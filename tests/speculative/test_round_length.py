"""What decides, token by token, how long a round is. Numbers worked by hand."""

import torch

from distill.speculative.decode import decode
from distill.speculative.drafters import ModelDrafter
from distill.speculative.round_length import Confident, ConfidentRound, draft_length, most_drafts
from distill.speculative.sampling import Sampling


def test_a_fixed_k_and_a_threshold_have_the_same_most_drafts():
    assert (draft_length(3, 0.0), draft_length(0, 0.5)) == (3, 0)
    assert most_drafts(draft_length(3, 0.0)) == most_drafts(draft_length(3, 0.5)) == 3


def test_a_row_ends_behind_its_first_token_below_the_threshold():
    this = Confident(3, threshold=0.5).start(rows=3)
    assert this(torch.tensor([0.9, 0.4, 0.5]))
    assert this(torch.tensor([0.6, 0.9, 0.3]))
    assert not this(torch.tensor([0.1, 0.9, 0.9]))
    # Row 1 ended at its first token: what is drawn behind it, for others' sake, is not its own.
    assert this.counts == [3, 1, 2]


def test_every_round_starts_afresh_and_rows_can_leave():
    length = Confident(3, threshold=0.5)
    length.start(rows=2)(torch.tensor([0.1, 0.1]))
    this = length.start(rows=1)
    assert this(torch.tensor([0.7]))
    assert this.counts == [1]


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
    proceed = ConfidentRound.__call__
    monkeypatch.setattr(
        ConfidentRound,
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
