"""The formulas of the design by hand-worked numbers."""

import pytest

from distill.speculative.prediction import (
    Cost,
    best_k,
    break_even_alpha,
    expected_tokens,
    predicted_speedup,
)


@pytest.mark.parametrize(
    ("alpha", "k", "tokens"),
    [(0.8, 4, 3.3616), (0.5, 1, 1.5), (0.0, 5, 1.0), (1.0, 5, 6.0), (0.3, 0, 1.0)],
)
def test_expected_tokens(alpha: float, k: int, tokens: float) -> None:
    assert expected_tokens(alpha, k) == pytest.approx(tokens)


def test_expected_tokens_is_the_closed_form_and_continuous_at_one() -> None:
    alpha = 0.7
    assert expected_tokens(alpha, 3) == pytest.approx((1 - alpha**4) / (1 - alpha))
    assert expected_tokens(1 - 1e-9, 7) == pytest.approx(expected_tokens(1.0, 7))


def test_both_forms_of_the_prediction() -> None:
    # alpha 0.8, k 4, c 0.05: 3.3616 / 1.2, and with v = 1.1: 3.3616 / 1.3
    assert predicted_speedup(0.8, 4, Cost(0.05)) == pytest.approx(3.3616 / 1.2)
    assert predicted_speedup(0.8, 4, Cost(0.05, 1.1)) == pytest.approx(3.3616 / 1.3)


def test_break_even_for_one_drafted_token_is_what_it_costs() -> None:
    # k = 1: 1 + alpha = v + c
    point = break_even_alpha({1: Cost(0.1, 1.05)})
    assert point is not None
    assert (point.alpha, point.num_draft_tokens) == (pytest.approx(0.15), 1)


def test_break_even_takes_the_k_that_needs_least() -> None:
    # k = 1 needs 0.5; k = 2 needs a + a² = 0.2 + 0.2: a = (−1 + √2.6) / 2
    point = break_even_alpha({1: Cost(0.4, 1.1), 2: Cost(0.1, 1.2)})
    assert point is not None
    assert (point.alpha, point.num_draft_tokens) == (pytest.approx((2.6**0.5 - 1) / 2), 2)


def test_at_break_even_the_prediction_is_one() -> None:
    costs = {k: Cost(0.15, 1 + 0.03 * k) for k in range(1, 9)}
    point = break_even_alpha(costs)
    assert point is not None
    k = point.num_draft_tokens
    assert predicted_speedup(point.alpha, k, costs[k]) == pytest.approx(1.0)
    assert all(predicted_speedup(point.alpha, j, costs[j]) <= 1 + 1e-9 for j in costs)


def test_no_break_even_when_not_even_a_perfect_draft_pays() -> None:
    assert break_even_alpha({k: Cost(1.0, 1.1) for k in range(1, 9)}) is None


def test_best_k_grows_with_alpha() -> None:
    costs = {k: Cost(0.1, 1.0) for k in range(1, 9)}
    assert [best_k(alpha, costs) for alpha in (0.2, 0.6, 0.95)] == [1, 3, 8]


def test_copy_of_the_target_never_pays() -> None:
    # c = 1: (k + 1) / (1 + k) = 1 at best, and less with any verify cost
    assert predicted_speedup(1.0, 4, Cost(1.0)) == pytest.approx(1.0)
    assert predicted_speedup(1.0, 4, Cost(1.0, 1.1)) < 1.0


@pytest.mark.parametrize(("alpha", "k"), [(-0.1, 1), (1.1, 1), (0.5, -1)])
def test_nonsense_is_refused(alpha: float, k: int) -> None:
    with pytest.raises(ValueError, match=r"alpha|k"):
        expected_tokens(alpha, k)
