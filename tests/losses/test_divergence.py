"""Hand-worked numbers, limits and identities of the per-token losses."""

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses import (
    FORWARD_KL,
    Mixture,
    acceptance,
    alpha,
    cross_entropy,
    forward_kl,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)

P = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).log()
Q = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64).log()
ALL = [forward_kl, reverse_kl, jsd, partial(jsd, beta=0.1), total_variation, acceptance, lk]
INF = math.inf


def logits(seed: int, rows: int = 6, vocabulary: int = 11) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, dtype=torch.float64, generator=generator) * 2


def test_directions_by_hand() -> None:  # case KD-DIR
    assert forward_kl(Q, P).item() == pytest.approx(0.0920, abs=5e-5)
    assert reverse_kl(Q, P).item() == pytest.approx(0.0851, abs=5e-5)


def test_acceptance_by_hand() -> None:
    assert alpha(Q, P).item() == pytest.approx(0.5 + 0.2 + 0.1)
    assert total_variation(Q, P).item() == pytest.approx(0.2)
    assert acceptance(Q, P).item() == pytest.approx(-math.log(0.8))
    weight = math.exp(-3 * 0.8)
    hybrid = weight * forward_kl(Q, P).item() + (1 - weight) * 0.2
    assert lk(Q, P).item() == pytest.approx(hybrid)


def test_jsd_by_hand() -> None:
    p, q = P.exp()[0], Q.exp()[0]
    m = 0.25 * p + 0.75 * q
    expected = 0.25 * (p * (p / m).log()).sum() + 0.75 * (q * (q / m).log()).sum()
    assert jsd(Q, P, beta=0.25).item() == pytest.approx(expected.item())


def test_cross_entropy_by_hand() -> None:
    assert cross_entropy(Q, torch.tensor([1])).item() == pytest.approx(-math.log(0.2))


@pytest.mark.parametrize("loss", ALL)
def test_zero_of_equal_and_positive_of_unequal(loss) -> None:
    s, t = logits(0), logits(1)
    assert torch.allclose(loss(t, t, 0.7), torch.zeros(6, dtype=torch.float64), atol=1e-12)
    assert (loss(s, t, 0.7) > 0).all()


def test_bounds_and_identities() -> None:
    s, t = logits(0), logits(1)
    entropy = -0.1 * math.log(0.1) - 0.9 * math.log(0.9)
    assert (jsd(s, t, beta=0.1) <= entropy).all()
    assert torch.allclose(jsd(s, t, beta=0.1), jsd(t, s, beta=0.9))
    assert torch.allclose(reverse_kl(s, t), forward_kl(t, s))
    assert torch.allclose(1 - total_variation(s, t), alpha(s, t))
    assert torch.allclose(acceptance(s, t).neg().exp(), alpha(s, t))
    assert torch.allclose(jsd(s, t, beta=1e-6) / 1e-6, forward_kl(s, t), rtol=1e-4)
    pinsker = 1 - (forward_kl(s, t) / 2).sqrt()
    assert (alpha(s, t) >= pinsker).all()


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_gradients_match_finite_differences(loss, temperature: float) -> None:
    s, t = logits(2, 3, 7).requires_grad_(), logits(3, 3, 7)
    detached = lk_with_fixed_weight(s, t, temperature) if loss is lk else loss
    assert torch.autograd.gradcheck(lambda x: detached(x, t, temperature), s)


def lk_with_fixed_weight(s: Tensor, t: Tensor, temperature: float):
    """The hybrid as a function whose weight does not move, which is what its gradient is of."""
    weight = torch.exp(-3 * alpha(s, t, temperature)).detach()

    def hybrid(x: Tensor, teacher: Tensor, at: float) -> Tensor:
        kl, tv = forward_kl(x, teacher, at), total_variation(x, teacher, at)
        return weight * kl + (1 - weight) * tv

    ours, theirs = (torch.autograd.grad(f(s, t, temperature).sum(), s)[0] for f in (lk, hybrid))
    assert torch.allclose(ours, theirs)
    return hybrid


@pytest.mark.parametrize("loss", [forward_kl, reverse_kl, jsd])
def test_temperature_softens_both_sides(loss) -> None:
    s, t = logits(0), logits(1)
    assert torch.allclose(loss(s, t, 2.0), loss(s / 2, t / 2))


@pytest.mark.parametrize("loss", ALL)
def test_tokens_that_neither_side_has_change_nothing(loss) -> None:
    s, t = logits(0), logits(1)
    nowhere = torch.full((6, 3), -INF, dtype=torch.float64)
    padded = torch.cat([s, nowhere], 1).requires_grad_()
    plain = s.clone().requires_grad_()
    loss(padded, torch.cat([t, nowhere], 1)).sum().backward()
    value = loss(plain, t)
    value.sum().backward()
    assert torch.allclose(loss(padded, torch.cat([t, nowhere], 1)), value)
    assert torch.allclose(padded.grad[:, :11], plain.grad)
    assert (padded.grad[:, 11:] == 0).all()


@pytest.mark.parametrize("loss", [forward_kl, jsd, total_variation, acceptance, lk])
def test_teacher_without_a_token_the_student_has(loss) -> None:
    s = torch.tensor([[0.0, 0.0, 0.0]], requires_grad=True)
    t = torch.tensor([[0.0, 0.0, -INF]])
    value = loss(s, t)
    value.sum().backward()
    assert value.isfinite().all()
    assert s.grad.isfinite().all()
    assert s.grad[0, 2] > 0  # descent takes mass from the token the teacher never says


def test_infinite_divergences_are_infinite() -> None:
    whole, part = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, -INF]])
    assert forward_kl(part, whole).item() == INF
    assert reverse_kl(whole, part).item() == INF
    assert forward_kl(whole, part).item() == pytest.approx(math.log(2))
    assert acceptance(torch.tensor([[-INF, 0.0]]), part).item() == INF
    assert jsd(torch.tensor([[-INF, 0.0]]), part).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_huge_logits_at_a_low_temperature_stay_finite(loss, dtype: torch.dtype) -> None:
    s = torch.tensor([[60.0, -60.0, 0.0]], dtype=dtype, requires_grad=True)
    t = torch.tensor([[-60.0, 60.0, 0.0]], dtype=dtype)
    value = loss(s, t, 0.05)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert value.isfinite().all()
    assert s.grad.isfinite().all()
    if loss in (forward_kl, reverse_kl, acceptance):
        expected = 2400.0 if loss is not acceptance else 1200.0 - math.log(3) + math.log(1)
        assert value.item() == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("loss", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_computed_in_fp32(loss, dtype: torch.dtype) -> None:
    s, t = logits(0).to(dtype), logits(1).to(dtype)
    for temperature in (1.0, 0.7):
        assert torch.equal(loss(s, t, temperature), loss(s.float(), t.float(), temperature))


def test_no_token_gives_no_values() -> None:
    empty = torch.empty(0, 5, requires_grad=True)
    for loss in ALL:
        assert loss(empty, empty.detach()).shape == (0,)


def test_mixtures() -> None:
    s, t, labels = logits(0), logits(1), torch.arange(6)
    mixture = Mixture.of({"forward_kl": 0.5, "total_variation": 2.0, "cross_entropy": 0.25})
    expected = 0.5 * forward_kl(s, t, 2.0) + 2 * total_variation(s, t, 2.0)
    expected += 0.25 * cross_entropy(s, labels)
    assert torch.allclose(mixture(s, t, 2.0, labels), expected)
    assert torch.equal(FORWARD_KL(s, t, 2.0), forward_kl(s, t, 2.0))
    assert Mixture.of({"forward_kl": 1.0, "reverse_kl": 0.0}) == FORWARD_KL  # not 0 · inf
    assert Mixture.of({"forward_kl": 1.0}, beta=0.1, eta=1.0) == FORWARD_KL
    assert mixture(s.bfloat16(), t.bfloat16(), 1.0, labels).dtype == torch.float32
    assert torch.allclose(Mixture.of({"jsd": 1.0}, beta=0.1)(s, t), jsd(s, t, beta=0.1))
    assert torch.allclose(Mixture.of({"lk": 1.0}, eta=1.0)(s, t), lk(s, t, eta=1.0))
    assert torch.allclose(Mixture.of({"lk": 2.0}, eta=1.0)(s, t), 2 * lk(s, t, eta=1.0))
    with pytest.raises(UserError, match="labels"):
        mixture(s, t)
    with pytest.raises(UserError, match="labels"):
        FORWARD_KL(s, t, 1.0, labels)


@pytest.mark.parametrize(
    ("call", "remedy"),
    [
        (lambda: forward_kl(logits(0), logits(0)[:, :8]), "slice both"),
        (lambda: alpha(logits(0), logits(0), 0.0), "above 0"),
        (lambda: jsd(logits(0), logits(0), beta=1.0), "forward_kl"),
        (lambda: Mixture.of({"kl": 1.0}), "choose from"),
        (lambda: Mixture.of({"cross_entropy": 1.0}), "needs a divergence"),
        (lambda: Mixture.of({"jsd": 1.0, "forward_kl": -0.5}), "0 or more"),
        (lambda: Mixture.of({"jsd": 1.0, "forward_kl": math.nan}), "finite"),
        (lambda: Mixture.of({"jsd": 0.0}), "weight above 0"),
        (lambda: Mixture.of({"jsd": 1.0}, beta=1.0), "forward_kl"),
        (lambda: Mixture.of({"jsd": 1.0, "forward_kl": 1.0}, beta=0.0), "forward_kl"),
        (lambda: Mixture.of({"lk": 1.0}, eta=-3.0), "or more"),
        (lambda: lk(logits(0), logits(0), eta=-3.0), "or more"),
    ],
)
def test_refusals_name_the_remedy(call, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        call()


def test_rounding_never_takes_a_pair_beyond_equal() -> None:
    s = torch.randn(64, 5000, generator=torch.Generator().manual_seed(0))
    assert (alpha(s, s) <= 1).all()
    assert (acceptance(s, s) >= 0).all()
