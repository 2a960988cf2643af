"""Truncated and sampled teachers."""

import math
from functools import partial

import pytest
import torch

from distill.errors import UserError
from distill.losses import (
    acceptance,
    alpha,
    as_divergence,
    forward_kl,
    fused_sparse_loss,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)
from distill.losses.sparse import (
    Sampled,
    TopK,
    draw,
    keep_top_k,
    sampled_alpha,
    sampled_divergence,
    top_k_divergence,
)

DENSE = [forward_kl, reverse_kl, jsd, total_variation, acceptance, lk]


def logits(seed: int, rows: int = 5, vocabulary: int = 9) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, dtype=torch.float64, generator=generator) * 2


def test_tail_bucket_by_hand() -> None:  # case KD-TOPK
    teacher = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.05, 0.05]]).log()
    student = torch.tensor([[0.6, 0.3, 0.025, 0.025, 0.025, 0.025]]).log()
    value = top_k_divergence(student, keep_top_k(teacher, 2)).item()
    naive = 0.5 * math.log(0.5 / 0.6) + 0.2 * math.log(0.2 / 0.3)
    assert naive == pytest.approx(-0.172, abs=5e-4)
    assert value == pytest.approx(0.157, abs=5e-4)


@pytest.mark.parametrize("loss", DENSE)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_keeping_every_token_is_exact(loss, temperature: float) -> None:
    s, t = logits(0).requires_grad_(), logits(1)
    value = top_k_divergence(s, keep_top_k(t, 9, temperature), loss)
    exact = loss(s, t, temperature)
    assert torch.allclose(value, exact)
    ours, theirs = (torch.autograd.grad(x.sum(), s)[0] for x in (value, exact))
    assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, jsd, total_variation])
def test_truncation_only_lowers_and_never_below_zero(loss) -> None:
    s, t = logits(0, rows=50), logits(1, rows=50)
    values = [top_k_divergence(s, keep_top_k(t, k), loss) for k in (1, 2, 4, 8)]
    for coarse, fine in zip(values, [*values[1:], loss(s, t)], strict=True):
        assert (coarse >= 0).all()
        assert (coarse <= fine + 1e-12).all()


def test_top_k_gradient_matches_finite_differences() -> None:
    s, signal = logits(0, 3).requires_grad_(), keep_top_k(logits(1, 3), 4, 0.7)
    assert torch.autograd.gradcheck(lambda x: top_k_divergence(x, signal), s)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampled_value_gradient_and_alpha_are_unbiased(temperature: float) -> None:
    """Every possible single draw, weighted by its probability, gives back the exact quantities."""
    s, t = logits(0, 1, 4).requires_grad_(), logits(1, 1, 4)
    log_p = (t / temperature).log_softmax(-1)
    value, gradient, kept = 0.0, torch.zeros_like(s), 0.0
    for x in range(4):
        ids = torch.tensor([[x]])
        one = torch.ones(1, 1, dtype=torch.float64)
        signal = Sampled(ids, one, log_p.gather(-1, ids), temperature)
        estimate, p = sampled_divergence(s, signal), log_p.exp()[0, x]
        value = value + p * estimate
        gradient += p * torch.autograd.grad(estimate.sum(), s)[0]
        kept = kept + p * sampled_alpha(s, signal)
    exact = forward_kl(s, t, temperature)
    assert torch.allclose(value, exact)
    assert torch.allclose(gradient, torch.autograd.grad(exact.sum(), s)[0])
    assert torch.allclose(kept, alpha(s, t, temperature))


def test_draws_follow_the_teacher() -> None:
    t = logits(1, 1, 4)
    signal = draw(t, 20_000, generator=torch.Generator().manual_seed(0))
    share = torch.bincount(signal.ids[0], minlength=4) / 20_000
    assert torch.allclose(share.double(), t.softmax(-1)[0], atol=0.015)
    assert signal.weights.sum().item() == pytest.approx(1.0)


REFUSED = [reverse_kl, jsd, total_variation, acceptance, lk]
REFUSED += [partial(jsd, beta=0.1), as_divergence({"forward_kl": 1.0, "jsd": 0.5})]


@pytest.mark.parametrize("loss", REFUSED)
def test_samples_refuse_losses_they_would_bias(loss) -> None:
    with pytest.raises(UserError, match=r"not linear.*use forward_kl"):
        sampled_divergence(logits(0), draw(logits(1), 3), loss)
    with pytest.raises(UserError, match=r"not linear.*use forward_kl"):
        fused_sparse_loss(torch.randn(5, 2), torch.randn(9, 2), draw(logits(1), 3), divergence=loss)


def test_samples_take_forward_kl_times_temperature_squared() -> None:
    s, signal = logits(0), draw(logits(1), 3, 2.0, torch.Generator().manual_seed(0))
    squared = sampled_divergence(s, signal, partial(forward_kl, t_squared=True))
    assert torch.allclose(squared, 4 * sampled_divergence(s, signal))


@pytest.mark.parametrize("kind", ["top_k", "sampled"])
def test_fused_equals_plain(kind: str) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    teacher, mask = logits(1, 40), torch.rand(40) > 0.4
    signal: TopK | Sampled = keep_top_k(teacher, 3) if kind == "top_k" else draw(teacher, 7)
    loss, sums = fused_sparse_loss(hidden, weight, signal, mask=mask, chunk_size=18)
    fused = torch.autograd.grad(loss, (hidden, weight))
    score = top_k_divergence if kind == "top_k" else sampled_divergence
    plain = score(hidden @ weight.t(), signal)[mask].sum()
    expected = torch.autograd.grad(plain, (hidden, weight))
    assert loss.item() == pytest.approx(plain.item())
    assert all(torch.allclose(a, b) for a, b in zip(fused, expected, strict=True))
    assert sums["tokens"] == mask.sum()
    same = (hidden @ weight.t()).argmax(-1) == teacher.argmax(-1)
    if kind == "top_k":
        assert sums["agreement"] == same[mask].sum()


def test_a_signal_of_other_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="one row of each per token"):
        fused_sparse_loss(torch.randn(4, 2), torch.randn(9, 2), keep_top_k(logits(1), 3))
