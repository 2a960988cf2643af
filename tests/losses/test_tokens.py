"""Which tokens count, and that every average is a ratio of sums."""

import torch

from distill.losses import forward_kl
from distill.losses.tokens import gradient_scale, predicting_positions


def test_only_the_positions_that_predict_an_answer_have_a_gradient() -> None:  # case KD-SHIFT
    positions = predicting_positions(torch.tensor([[False, True, True]]))
    assert positions.tolist() == [0, 1]
    logits = torch.zeros(1, 3, 7, requires_grad=True)
    teacher = torch.randn(1, 3, 7)
    forward_kl(logits, teacher).flatten()[positions].sum().backward()
    assert [bool(g.any()) for g in logits.grad[0]] == [True, True, False]


def test_an_answer_of_one_token_trains() -> None:
    assert predicting_positions(torch.tensor([[0, 0, 0, 1, 0, 0]], dtype=torch.bool)).tolist() == [
        2
    ]


def test_the_first_token_of_a_row_is_never_predicted() -> None:
    """Neither in its own row nor from the end of the row before it."""
    supervised = torch.tensor([[True, True, False], [True, False, True]])
    assert predicting_positions(supervised).tolist() == [0, 4]


def test_no_supervised_token_is_no_position() -> None:  # case KD-EMPTY
    assert predicting_positions(torch.zeros(2, 3, dtype=torch.bool)).shape == (0,)


def test_a_mean_over_uneven_micro_batches() -> None:  # case ACC-MEAN
    values = torch.tensor([1.0, 3.0, 3.0, 3.0], requires_grad=True)
    for part in (values[:1], values[1:]):
        part.sum().backward()
    assert torch.equal(values.grad * gradient_scale(4), torch.full((4,), 0.25))
    assert float(values.detach().sum() * gradient_scale(4)) == 2.5


def test_averaging_over_ranks_cancels() -> None:
    ranks = [2.0, 10.0]  # gradients of each rank's loss sum, 2 and 10 tokens of gradient 1
    assert sum(ranks) / 2 * gradient_scale(12, world_size=2) == 1.0
