"""The tokens that are learnt, by hand: the draft's loss less the reference's."""

import pytest
import torch

from distill.losses import Head, forward_kl
from distill.losses.chunked import token_scores
from distill.losses.dense import DenseTeacher, TokenLoss
from distill.losses.sparse import keep_top_k
from distill.teacher.signals import HiddenSignal
from distill.training.objective import Objective
from distill.training.selection import most_behind

P, Q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.7, 0.2, 0.1])
FAR = torch.tensor([0.9, 0.05, 0.05])
KL = 0.0920
"""KL(P‖Q). Σ min(P, ·) is 0.8 with Q, 0.6 with FAR."""


@pytest.mark.parametrize(("keep", "kept"), [(0.2, [1]), (0.4, [1, 3]), (0.41, [1, 3, 4])])
def test_the_largest_excesses_are_kept(keep, kept) -> None:
    excess = torch.tensor([0.1, 0.5, -0.2, 0.4, 0.3])
    assert most_behind(excess, keep).nonzero().flatten().tolist() == kept
    assert most_behind(excess, 1.0).all()


@pytest.mark.parametrize("sparse", [False, True], ids=["hidden", "top_k"])
def test_only_what_can_be_reached_and_is_not_is_learnt(sparse) -> None:
    """Tokens: furthest off, but so is the reference; learnt; behind it. A third of them is one."""
    head = Head(torch.eye(3))
    hidden = torch.stack([FAR, P, Q]).log().requires_grad_()
    reference = HiddenSignal(torch.stack([FAR, P, P]).log(), head)
    p = P.log().expand(3, 3)
    signal = keep_top_k(p, 3) if sparse else HiddenSignal(p, head)
    loss, sums = Objective(weighting="learnable", reference="there", keep=1 / 3, chunk_size=2)(
        hidden,
        head,
        signal,
        torch.zeros(3, dtype=torch.long),
        vocabulary_size=3,
        compute_dtype=None,
        reference=reference,
    )
    loss.backward()
    assert loss.item() == pytest.approx(KL, abs=1e-4)
    torch.testing.assert_close(hidden.grad[2], torch.tensor([0.2, -0.1, -0.1]))
    assert not hidden.grad[:2].any()
    assert (float(sums["weight"]), float(sums["tokens"])) == (1, 3)
    assert sums["alpha"].item() == pytest.approx(0.6 + 1.0 + 0.8)
    assert sums["agreement"].item() == 3


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_scores_of_chunks_are_those_of_the_definition(softcap) -> None:
    torch.manual_seed(0)
    hidden, head = torch.randn(7, 4), Head(torch.randn(9, 4), scale=0.5, softcap=softcap)
    states, teacher = torch.randn(7, 5), Head(torch.randn(9, 5))
    source = DenseTeacher(states, teacher, TokenLoss(forward_kl, 2.0, False), None, 3)
    scores = token_scores(hidden, head, source, 3, torch.float32)
    s, t = head.logits(hidden), teacher.logits(states)
    torch.testing.assert_close(scores.values, forward_kl(s, t, 2.0))
    torch.testing.assert_close(scores.alpha, torch.minimum(s.softmax(-1), t.softmax(-1)).sum(-1))
    assert torch.equal(scores.agreement, (s.argmax(-1) == t.argmax(-1)).float())
    assert [len(part) for part in token_scores(hidden[:0], head, source, 3, torch.float32)] == [
        0
    ] * 3
