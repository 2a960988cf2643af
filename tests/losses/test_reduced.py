"""A draft of some ids only is scored against the target's whole distribution."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses import (
    Head,
    HiddenSignal,
    Mixture,
    ReducedSignal,
    alpha,
    fused_loss,
    kernels,
    summarise,
)
from distill.losses.closed_forms import closed_form
from distill.losses.kernels import autograd_kernel, closed_kernel
from distill.losses.mixture import BY_NAME

T, V, WIDTH = 41, 30, 8
KEPT = torch.tensor([2, 3, 5, 7, 11, 13, 17, 19, 23, 29])

forward_kl, reverse_kl, jsd, total_variation, acceptance, lk = (
    Mixture.of({name: 1.0}) for name in BY_NAME
)
ALL = [
    forward_kl,
    reverse_kl,
    jsd,
    total_variation,
    acceptance,
    lk,
    Mixture.of({"jsd": 1}, beta=0.2),
]
ALL += [Mixture.of({"forward_kl": 0.5, "total_variation": 2.0, "acceptance": 0.3})]


def dense(name: str, q: Tensor, p: Tensor, beta: float, eta: float) -> Tensor:
    """From the two distributions over all ids [T, V], q zero outside the kept ones: [T]."""
    kept = q > 0
    safe_q = torch.where(kept, q, 1.0)
    mass = torch.where(kept, p, 0.0).sum(-1)
    middle = beta * p + (1 - beta) * q
    own = torch.where(kept, q * (safe_q / middle).log(), 0.0)
    if name == "forward_kl":
        return torch.where(kept, p * (p / safe_q).log(), 0.0).sum(-1) - mass * mass.log()
    if name == "reverse_kl":
        return torch.where(kept, q * (safe_q / p).log(), 0.0).sum(-1)
    if name == "jsd":
        return (beta * p * (p / middle).log() + (1 - beta) * own).sum(-1)
    if name == "total_variation":
        return 0.5 * (q - p).abs().sum(-1)
    if name == "acceptance":
        return -torch.minimum(q, p).sum(-1).log()
    distance = dense("total_variation", q, p, beta, eta)
    weight = torch.exp(-eta * (1 - distance.detach()))
    return weight * dense("forward_kl", q, p, beta, eta) + (1 - weight) * distance


def reference(divergence: Mixture, student: Tensor, teacher: Tensor) -> Tensor:
    """Student [T, v], teacher [T, V] logits → [T]."""
    p = teacher.softmax(-1)
    q = torch.zeros_like(p).index_copy(-1, KEPT, student.softmax(-1))
    options = [{"beta": 0.5, "eta": 3.0} | dict(term.options) for term in divergence.terms]
    return sum(
        term.weight * dense(term.name, q, p, **one)
        for term, one in zip(divergence.terms, options, strict=True)
    )


class Pair:
    """A student of the kept ids and a teacher of all; often the teacher favours an id not kept."""

    def __init__(self, dtype: torch.dtype = torch.float64, kept: Tensor = KEPT):
        make = partial(torch.randn, generator=torch.Generator().manual_seed(0))
        self.teacher_hidden = make(T, WIDTH).to(dtype)
        self.teacher = Head(make(V, WIDTH).to(dtype), make(V).to(dtype))
        self.hidden = (self.teacher_hidden + make(T, WIDTH).to(dtype)).requires_grad_()
        self.weight = self.teacher.weight[kept].clone().requires_grad_()
        self.student = Head(self.weight)
        head = Head(self.teacher.weight[kept], self.teacher.bias[kept])
        whole = summarise(self.teacher_hidden, self.teacher)
        self.signal = ReducedSignal(self.teacher_hidden, head, *whole)

    def logits(self) -> tuple[Tensor, Tensor]:
        return self.student.logits(self.hidden), self.teacher.logits(self.teacher_hidden)

    def fused(self, **options):
        return fused_loss(self.hidden, self.student, self.signal, **options)

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(3 * loss, (self.hidden, self.weight))


def eager_closed_form(divergence: Mixture):
    form = closed_form(divergence)
    assert form is not None
    return closed_kernel(form, divergence, lambda rows: rows)


def check_against_reference(pair: Pair, divergence: Mixture, rel: float, **options) -> None:
    loss, sums = pair.fused(divergence=divergence, **options)
    student, teacher = pair.logits()
    plain = reference(divergence, student, teacher).sum()
    close = partial(torch.testing.assert_close, rtol=rel, atol=rel, check_dtype=False)
    close(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        close(ours, theirs)
    p, q = teacher.softmax(-1), student.softmax(-1)
    close(sums["alpha"], torch.minimum(q, p[:, KEPT]).sum())
    agree = KEPT[student.argmax(-1)] == teacher.argmax(-1)
    assert 0 < agree.sum() < (student.argmax(-1) == teacher[:, KEPT].argmax(-1)).sum()
    assert (sums["agreement"], sums["tokens"]) == (agree.sum(), T)


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("chunk_size", [1, 18, 128])
def test_equals_a_dense_reference(divergence, chunk_size: int) -> None:
    check_against_reference(Pair(), divergence, 1e-9, chunk_size=chunk_size)


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_closed_forms_equal_a_dense_reference(divergence, dtype, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_compiled_kernel", eager_closed_form)
    monkeypatch.setattr(kernels, "autograd_kernel", None)  # its own: no way out
    rel = 1e-9 if dtype == torch.float64 else 2e-4
    check_against_reference(Pair(dtype), divergence, rel, chunk_size=18, compiled=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize("divergence", ALL)
def test_compiled_equals_a_dense_reference(divergence) -> None:
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # else it runs uncompiled
        check_against_reference(Pair(torch.float32), divergence, 2e-4, chunk_size=18, compiled=True)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("divergence", ALL)
def test_half_precision(divergence, closed: bool, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_compiled_kernel", eager_closed_form)
    pair, exact = Pair(torch.bfloat16), Pair()
    loss, sums = pair.fused(divergence=divergence, compiled=closed, chunk_size=16)
    wanted, wanted_sums = exact.fused(divergence=divergence)
    assert loss.dtype == pair.signal.log_total.dtype == torch.float32
    assert loss.item() == pytest.approx(wanted.item(), rel=0.03)
    assert sums["alpha"].item() == pytest.approx(wanted_sums["alpha"].item(), rel=0.03)


def scores(divergence: Mixture, kernel_of, student: Tensor, teacher: Tensor, log_total: Tensor):
    gradient = student.clone()
    return kernel_of(divergence)(gradient, teacher, 1.0, None, log_total), gradient


@pytest.mark.parametrize("kernel_of", [autograd_kernel, eager_closed_form])
def test_numbers_worked_by_hand(kernel_of) -> None:
    """P = (0.4, 0.2 | 0.3, 0.1) of which two ids are kept, q = (0.5, 0.5): m = 0.6."""
    student = torch.zeros(1, 2, dtype=torch.float64)
    teacher = torch.tensor([[0.4, 0.2]], dtype=torch.float64).log() + 7.0
    total = torch.tensor([7.0], dtype=torch.float64)
    kl = 0.4 * math.log(0.8) + 0.2 * math.log(0.4) - 0.6 * math.log(0.6)
    kl_weight = math.exp(-3.0 * 0.6)
    of_p = 0.4 * math.log(0.4 / 0.45) + 0.2 * math.log(0.2 / 0.35) + 0.4 * math.log(2)
    of_q = 0.5 * math.log(0.5 / 0.45) + 0.5 * math.log(0.5 / 0.35)
    # The loss, and its gradient by the first logit; that by the second is the opposite.
    expected = {
        forward_kl: (kl, -0.1),  # 0.6 · 0.5 − 0.4
        reverse_kl: (0.5 * math.log(1.25) + 0.5 * math.log(2.5), -math.log(2) / 4),
        jsd: (0.5 * of_p + 0.5 * of_q, math.log(0.35 / 0.45) / 8),
        total_variation: (0.4, 0.0),  # q is above p on both, so that nothing moves alpha
        acceptance: (-math.log(0.6), 0.0),
        lk: (kl_weight * kl + (1 - kl_weight) * 0.4, -0.1 * kl_weight),
    }
    for divergence, (value, slope) in expected.items():
        found, gradient = scores(divergence, kernel_of, student, teacher, total)
        assert found.values.item() == pytest.approx(value), divergence.name
        assert gradient[0].tolist() == pytest.approx([slope, -slope]), divergence.name
        assert found.alpha.item() == pytest.approx(0.6)


@pytest.mark.parametrize("divergence", ALL)
def test_all_ids_kept_equals_the_whole_distribution(divergence) -> None:
    pair = Pair(torch.float32, torch.arange(V))
    loss, sums = pair.fused(divergence=divergence)
    full = HiddenSignal(pair.teacher_hidden, pair.teacher)
    wanted, wanted_sums = fused_loss(pair.hidden, pair.student, full, divergence=divergence)
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums, wanted_sums, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("divergence", ALL)
def test_a_row_of_which_hardly_anything_is_kept(divergence) -> None:
    """P of the kept ids underflows fp32; the rows are scored again in float64."""
    student, teacher = torch.tensor([[0.0, 1.0]]), torch.tensor([[-150.0, -151.0]])
    total = torch.zeros(1)
    found, gradient = scores(divergence, eager_closed_form, student, teacher, total)
    wide = (student.double(), teacher.double(), total.double())
    wanted, wanted_gradient = scores(divergence, autograd_kernel, *wide)
    assert found.values.isfinite().all()
    torch.testing.assert_close(found.values, wanted.values.float())
    torch.testing.assert_close(gradient, wanted_gradient.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("chunk_size", [1, 18, 33, 128, None])
def test_a_summary_is_that_of_all_logits(dtype, chunk_size) -> None:
    pair = Pair(dtype)
    whole = summarise(pair.teacher_hidden, pair.teacher, chunk_size=chunk_size)
    logits = pair.teacher.logits(pair.teacher_hidden).to(whole.log_total.dtype)
    assert whole.log_total.dtype == torch.promote_types(dtype, torch.float32)
    rough = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {}
    torch.testing.assert_close(whole.log_total, logits.logsumexp(-1), **rough)
    torch.testing.assert_close(whole.largest, logits.amax(-1), **rough)


def test_tokens_taken_again_are_scored_as_they_were() -> None:
    pair = Pair()
    index = torch.tensor([4, 40, 4, 0])
    shifted = pair.signal.take(index)
    loss, _ = fused_loss(pair.hidden[index], pair.student, shifted)
    plain = reference(forward_kl, *(side[index] for side in pair.logits()))
    assert torch.allclose(loss, plain.sum())
    assert shifted.head is pair.signal.head


def test_alpha_is_at_most_what_the_teacher_gives_the_kept_ids() -> None:
    pair = Pair()
    student, whole_teacher = pair.logits()
    mass = whole_teacher.softmax(-1)[:, KEPT].sum(-1)
    teacher, log_total = whole_teacher[:, KEPT], pair.signal.log_total
    assert torch.allclose(alpha(teacher, teacher, 1.0, log_total), mass)  # q = p/m
    assert (alpha(student, teacher, 1.0, log_total) < mass + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_same_token_found_by_products_of_two_shapes_agrees(dtype) -> None:
    """The largest of all logits may differ in its last digit from that of the kept rows alone."""
    pair = Pair(dtype, torch.arange(V))
    _, wanted = pair.fused()
    digit = torch.finfo(dtype).eps if dtype == torch.bfloat16 else 1e-6
    pair.signal = replace(pair.signal, largest=pair.signal.largest * (1 + digit / 2))
    assert pair.fused()[1]["agreement"] == wanted["agreement"] > 0
    pair.signal = replace(pair.signal, largest=pair.signal.largest + 0.5)
    assert pair.fused()[1]["agreement"] == 0


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"temperature": 0.5}, "use temperature=1"),
        ({"vocabulary_size": 9}, "exactly the draft's ids"),
        (
            {
                "divergence": Mixture.of({"forward_kl": 1.0, "cross_entropy": 0.3}),
                "labels": torch.zeros(T, dtype=torch.long),
            },
            "leave it out",
        ),
    ],
)
def test_refusals_name_the_remedy(change: dict, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Pair().fused(**change)


@pytest.mark.parametrize("name", ["log_total", "largest"])
def test_a_summary_of_other_tokens_is_refused(name: str) -> None:
    pair = Pair()
    pair.signal = replace(pair.signal, **{name: torch.zeros(T - 1)})
    with pytest.raises(UserError, match="summarise"):
        pair.fused()


def test_closed_forms_are_not_softened_either(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "_compiled_kernel", eager_closed_form)
    with pytest.raises(UserError, match="temperature=1"):
        Pair().fused(temperature=0.5, compiled=True)


def test_no_token_is_a_zero_on_the_graph() -> None:
    pair = Pair(torch.float32)
    pair.signal = pair.signal.take(torch.tensor([], dtype=torch.long))
    pair.hidden = pair.hidden[:0]
    loss, sums = pair.fused()
    assert loss.item() == 0.0
    assert all(value.item() == 0.0 for value in sums.values())
    assert not pair.gradients(loss)[1].any()
    assert summarise(pair.teacher_hidden[:0], pair.teacher).log_total.shape == (0,)


def test_a_definition_refuses_to_soften_some_ids() -> None:
    with pytest.raises(UserError, match="temperature=1"):
        forward_kl(torch.zeros(1, 2), torch.zeros(1, 2), 2.0, None, torch.ones(1))
