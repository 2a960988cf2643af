"""The rule alone: hand-worked numbers, the emitted law, and a broken rule that must show."""

from itertools import product

import pytest
import torch

from distill.speculative.rule import greedy_rule, residual, sample, speculative_rule

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def one_draft(draft: int, test: float, final: float, p=P, q=Q):
    """One row, one draft, the same p after it."""
    return speculative_rule(
        torch.tensor([[draft]]),
        q[None, None],
        torch.stack((p, p))[None],
        torch.tensor([[test, final]], dtype=torch.float64),
        torch.tensor([1]),
    )


def test_alpha_and_residual_by_hand():
    """SD-RULE: Σ min(p, q) = .2 + .3 + .2; max(0, p − q) leaves only token 0."""
    assert one_draft(0, 0.0, 0.0).alpha.item() == pytest.approx(0.7)
    left = residual(P, Q)
    torch.testing.assert_close(left, torch.tensor([0.3, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(left / left.sum(), torch.tensor([1.0, 0, 0], dtype=torch.float64))


def test_zero_residual_samples_p():
    """SD-T0: p == q with a forced rejection."""
    torch.testing.assert_close(residual(P, P), P)


@pytest.mark.parametrize(("draft", "ratio"), [(0, 1.0), (1, 1.0), (2, 0.4)])
def test_accepts_exactly_below_the_ratio(draft, ratio):
    assert one_draft(draft, ratio - 1e-9, 0.5).accepted.item() == 1
    if ratio < 1:
        rejected = one_draft(draft, ratio + 1e-9, 0.5)
        assert rejected.accepted.item() == 0
        assert rejected.next_token.item() == 0  # the residual's only token


def test_a_token_the_target_excludes_is_never_accepted():
    p = torch.tensor([0.0, 1.0], dtype=torch.float64)
    q = torch.tensor([1.0, 0.0], dtype=torch.float64)
    verdict = one_draft(0, 0.0, 0.3, p, q)
    assert (verdict.accepted.item(), verdict.next_token.item()) == (0, 1)


def test_padding_drafts_are_not_tested():
    """A row with one real draft of three: the bonus token comes from p behind it."""
    p = torch.eye(4, dtype=torch.float64)[None]
    q = torch.full((1, 3, 4), 0.25, dtype=torch.float64)
    uniforms = torch.zeros(1, 4, dtype=torch.float64)
    verdict = speculative_rule(torch.tensor([[0, 1, 2]]), q, p, uniforms, torch.tensor([1]))
    assert (verdict.accepted.item(), verdict.next_token.item()) == (1, 1)


def emitted_law(p: torch.Tensor, q: torch.Tensor, rule=speculative_rule) -> torch.Tensor:
    """Law of the first emitted token, over every draft and a fine grid of both uniforms."""
    V, n = p.shape[0], 400
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    law = torch.zeros(V, dtype=torch.float64)
    for draft in range(V):
        tests, finals = (u.reshape(-1) for u in torch.meshgrid(grid, grid, indexing="ij"))
        rows = tests.shape[0]
        verdict = rule(
            torch.full((rows, 1), draft),
            q.expand(rows, 1, V),
            p.expand(rows, 2, V),
            torch.stack((tests, finals), 1),
            torch.ones(rows, dtype=torch.long),
        )
        first = torch.where(verdict.accepted > 0, draft, verdict.next_token)
        law += q[draft] * torch.bincount(first, minlength=V) / rows
    return law


def test_emitted_law_is_p():
    """Multiples of 1/400 make the grid of uniforms exact."""
    torch.testing.assert_close(emitted_law(P, Q), P, atol=1e-12, rtol=0)


def test_a_rule_without_residual_is_caught():
    def broken(drafts, q, p, uniforms, counts):
        verdict = speculative_rule(drafts, q, p, uniforms, counts)
        return verdict._replace(next_token=sample(p[:, 0], uniforms[:, -1]))

    assert (emitted_law(P, Q, broken) - P).abs().max() > 0.05


def test_a_copy_as_draft_is_always_accepted():
    for draft, test in product(range(3), (0.0, 0.5, 1 - 1e-16)):
        assert one_draft(draft, test, 0.5, P, P).accepted.item() == 1


def test_sample_never_draws_a_zero_weight():
    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    draws = {sample(weights, torch.tensor([u])).item() for u in (0.0, 0.29, 0.31, 1 - 1e-16)}
    assert draws == {1, 3}


def test_greedy_rule_stops_at_the_first_difference():
    verdict = greedy_rule(
        torch.tensor([[1, 2, 3, 4]]), torch.tensor([[1, 9, 3, 4, 5]]), torch.tensor([4])
    )
    assert (verdict.accepted.item(), verdict.next_token.item()) == (1, 9)
    assert verdict.alpha.tolist() == [[1, 0, 1, 1]]


@pytest.mark.parametrize("K", [0, 1, 3])
def test_greedy_rule_is_the_rule_on_one_hots(K):
    torch.manual_seed(0)
    drafts, best = torch.randint(3, (50, K)), torch.randint(3, (50, K + 1))
    counts = torch.randint(K + 1, (50,))
    p = torch.nn.functional.one_hot(best, 3).double()
    q = torch.nn.functional.one_hot(drafts, 3).double()
    uniforms = torch.rand(50, K + 1, dtype=torch.float64)
    for a, b in zip(
        greedy_rule(drafts, best, counts),
        speculative_rule(drafts, q, p, uniforms, counts),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
