"""Truncated and sampled teachers."""

import math

import pytest
import torch

from distill.errors import UserError
from distill.losses import Head, Mixture, alpha, fused_loss
from distill.losses.mixture import BY_NAME
from distill.losses.sparse import (
    Sampled,
    TopK,
    buckets,
    draw,
    keep_top_k,
    sampled_alpha,
    sampled_divergence,
    top_k_divergence,
)


def alone(name: str, **options: float) -> Mixture:
    """The mixture of this divergence alone."""
    return Mixture.of({name: 1.0}, **options)


forward_kl, reverse_kl, jsd, total_variation, acceptance, lk = (alone(name) for name in BY_NAME)
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
REFUSED += [alone("jsd", beta=0.1), Mixture.of({"forward_kl": 1.0, "jsd": 0.5})]


@pytest.mark.parametrize("loss", REFUSED)
def test_samples_refuse_losses_they_would_bias(loss) -> None:
    with pytest.raises(UserError, match=r"not linear.*use forward_kl"):
        sampled_divergence(logits(0), draw(logits(1), 3), loss)
    with pytest.raises(UserError, match=r"not linear.*use forward_kl"):
        fused_loss(torch.randn(5, 2), Head(torch.randn(9, 2)), draw(logits(1), 3), divergence=loss)


KINDS = [("top_k", loss) for loss in DENSE] + [("sampled", forward_kl)]


class Case:
    """40 tokens, a student's head of 9 ids and 3 rows of padding, a signal over the 9."""

    def __init__(self, kind: str, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.hidden = torch.randn(40, 6).to(dtype).requires_grad_()
        self.weight = torch.cat([torch.randn(9, 6), 30 * torch.randn(3, 6)]).to(dtype)
        self.weight.requires_grad_()
        self.teacher = logits(1, 40)
        self.signal: TopK | Sampled
        self.signal = keep_top_k(self.teacher, 3) if kind == "top_k" else self._drawn()

    def _drawn(self) -> Sampled:
        """The likeliest last."""
        signal = draw(self.teacher, 7)
        order = signal.log_probs.argsort(-1)
        ids, log_probs = signal.ids.gather(-1, order), signal.log_probs.gather(-1, order)
        return Sampled(ids, signal.weights, log_probs)

    def logits(self) -> torch.Tensor:
        return self.hidden @ self.weight[:9].t()

    def values(self, loss) -> torch.Tensor:
        score = top_k_divergence if isinstance(self.signal, TopK) else sampled_divergence
        return score(self.logits(), self.signal, loss)

    def fused(self, **options):
        options = {"vocabulary_size": 9, "chunk_size": 18} | options
        return fused_loss(self.hidden, Head(self.weight), self.signal, **options)


@pytest.mark.parametrize(("kind", "loss"), KINDS)
def test_fused_equals_plain(kind: str, loss) -> None:
    case = Case(kind)
    found, sums = case.fused(divergence=loss)
    plain = case.values(loss).sum()
    inputs = (case.hidden, case.weight)
    assert found.item() == pytest.approx(plain.item())
    for ours, theirs in zip(
        torch.autograd.grad(found, inputs), torch.autograd.grad(plain, inputs), strict=True
    ):
        assert torch.allclose(ours, theirs)
    assert sums["tokens"] == 40
    if isinstance(case.signal, TopK):
        kept = alpha(*buckets(case.logits(), case.signal))
        favourite = case.teacher.argmax(-1)
    else:
        kept = sampled_alpha(case.logits(), case.signal)
        drawn = case.signal.log_probs.argmax(-1, keepdim=True)
        favourite = case.signal.ids.gather(-1, drawn).squeeze(-1)
    assert sums["alpha"].item() == pytest.approx(kept.sum().item())
    same = case.logits().argmax(-1) == favourite
    assert sums["agreement"] == same.sum()


@pytest.mark.parametrize(("kind", "loss"), [("top_k", jsd), ("sampled", forward_kl)])
def test_fused_in_half_precision(kind: str, loss) -> None:
    case = Case(kind, torch.float32)
    exact, wanted = case.fused(divergence=loss)
    found, sums = case.fused(divergence=loss, compute_dtype=torch.bfloat16)
    assert found != exact
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(exact.item(), rel=0.02)
    assert sums["alpha"].item() == pytest.approx(wanted["alpha"].item(), rel=0.02)


@pytest.mark.parametrize("loss", DENSE)
def test_a_student_of_no_mass_beside_the_kept_tokens(loss) -> None:
    """By hand: p = (e, 1)/(e + 1), q = (1, e)/(1 + e), so KL(p‖q) = (e − 1)/(e + 1) = 0.4621."""
    s = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]], dtype=torch.float64).requires_grad_()
    t = torch.tensor([[1.0, 0.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    value = top_k_divergence(s, keep_top_k(t, 2), loss)
    exact = loss(s, t)
    if loss is forward_kl:
        assert value.item() == pytest.approx(0.4621, abs=5e-5)
    ours, theirs = (torch.autograd.grad(x.sum(), s)[0] for x in (value, exact))
    assert torch.allclose(value, exact)
    assert torch.allclose(ours, theirs)


def test_padding_among_the_draws_says_nothing() -> None:
    s, signal = logits(0).requires_grad_(), draw(logits(1), 3)
    ids = torch.cat([signal.ids, s.argmax(-1, keepdim=True)], -1)
    weights = torch.nn.functional.pad(signal.weights, (0, 1))
    for nothing in (-torch.inf, 0.0):
        log_probs = torch.nn.functional.pad(signal.log_probs, (0, 1), value=nothing)
        padded = Sampled(ids, weights, log_probs)
        value, same = sampled_divergence(s, padded), sampled_divergence(s, signal)
        assert torch.allclose(value, same)
        ours, theirs = (torch.autograd.grad(x.sum(), s)[0] for x in (value, same))
        assert torch.allclose(ours, theirs)
        assert torch.allclose(sampled_alpha(s, padded), sampled_alpha(s, signal))
        eye = torch.eye(9, dtype=torch.float64)
        agreements = [fused_loss(s, Head(eye), one)[1]["agreement"] for one in (padded, signal)]
        assert agreements[0] == agreements[1]


def test_draws_from_a_flatter_proposal_weigh_what_makes_up_for_it() -> None:
    teacher = torch.tensor([[0.64, 0.16, 0.04, 0.16]]).log()
    signal = draw(teacher, 500, generator=torch.Generator().manual_seed(0), proposal_temperature=2)
    # r ∝ √p = (0.8, 0.4, 0.2, 0.4)/1.8, so p/r = 1.8 · √p.
    root = torch.tensor([0.8, 0.4, 0.2, 0.4])
    assert torch.allclose(signal.weights, 1.8 * root[signal.ids] / 500)
    share = torch.bincount(signal.ids[0], minlength=4) / 500
    assert torch.allclose(share, root / 1.8, atol=0.06)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"chunk_size": 0}, "1 or more"),
        ({"chunk_size": -1}, "1 or more"),
        ({"divergence": Mixture.of({"forward_kl": 1.0, "cross_entropy": 0.5})}, "signal=hidden"),
    ],
)
def test_refusals_name_the_remedy(change: dict, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Case("top_k").fused(**change)


def test_states_of_another_width_are_refused() -> None:
    with pytest.raises(UserError, match="of the head's width"):
        fused_loss(torch.randn(5, 3), Head(torch.randn(9, 2)), keep_top_k(logits(1), 3))


def test_a_signal_of_other_tokens_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"student has 4 tokens and signal is \(5,\); give one value a token"
    ):
        fused_loss(torch.randn(4, 2), Head(torch.randn(9, 2)), keep_top_k(logits(1), 3))
