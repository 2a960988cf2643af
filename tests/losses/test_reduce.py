"""Which tokens count, and that every average is a ratio of sums."""

import pytest
import torch

from distill.errors import UserError
from distill.losses import forward_kl
from distill.losses.reduce import (
    gradient_scale,
    masked_sum,
    predicting,
    supervised_tokens,
    window_mean,
)


def test_only_the_positions_that_predict_an_answer_have_a_gradient() -> None:  # case KD-SHIFT
    supervised = supervised_tokens(torch.tensor([3]), torch.tensor([1]), 3)
    assert supervised.tolist() == [[False, True, True]]
    logits = torch.zeros(1, 3, 7, requires_grad=True)
    teacher = torch.randn(1, 3, 7)
    total, count = masked_sum(forward_kl(logits, teacher), predicting(supervised))
    total.backward()
    assert count == 2
    assert [bool(g.any()) for g in logits.grad[0]] == [True, True, False]


def test_an_answer_of_one_token_trains() -> None:
    supervised = supervised_tokens(torch.tensor([4]), torch.tensor([3]), 6)
    assert predicting(supervised).tolist() == [[False, False, True, False, False, False]]


def test_lengths_decide_and_token_zero_is_never_predicted() -> None:  # case EOS-PAD
    supervised = supervised_tokens(torch.tensor([2, 4]), torch.tensor([0, 2]), 5)
    assert supervised.int().tolist() == [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0]]


def test_nothing_predicts_across_a_join_of_documents() -> None:  # case PACK
    supervised = torch.tensor([[False, True, True, True]])
    documents = torch.tensor([[0, 0, 1, 1]])
    assert predicting(supervised, documents).int().tolist() == [[1, 0, 1, 0]]


def test_a_mean_over_uneven_micro_batches() -> None:  # case ACC-MEAN
    values = torch.tensor([1.0, 3.0, 3.0, 3.0], requires_grad=True)
    parts = [masked_sum(values[:1]), masked_sum(values[1:])]
    assert window_mean(parts).item() == 2.5
    for total, _ in parts:
        total.backward()
    assert torch.equal(values.grad * gradient_scale(4), torch.full((4,), 0.25))


def test_averaging_over_ranks_cancels() -> None:
    ranks = [2.0, 10.0]  # gradients of each rank's loss sum, 2 and 10 tokens of gradient 1
    assert sum(ranks) / 2 * gradient_scale(12, world_size=2) == 1.0


def test_no_supervised_token_adds_nothing() -> None:  # case KD-EMPTY
    values = torch.tensor([float("nan"), float("inf")], requires_grad=True)
    total, count = masked_sum(values, torch.zeros(2, dtype=torch.bool))
    total.backward()
    assert (total.item(), count.item()) == (0.0, 0)
    assert values.grad.tolist() == [0.0, 0.0]
    assert window_mean([(total, count)]).item() == 0.0
    assert gradient_scale(0) is None


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(UserError, match="one flag a token"):
        masked_sum(torch.ones(3), torch.ones(2, dtype=torch.bool))
