"""The fused loss equals the plain one, for every divergence, head and dtype."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from distill.errors import UserError
from distill.losses import (
    Head,
    acceptance,
    alpha,
    as_divergence,
    chunked,
    closed_forms,
    forward_kl,
    fused_linear_loss,
    jsd,
    lk,
    reverse_kl,
    total_variation,
)
from distill.losses.chunked import BLOCK_ROWS, chunk_tokens
from distill.losses.closed_forms import closed_form, closed_kernel
from distill.losses.kernels import autograd_kernel

T, V, PADDED_V, STUDENT_WIDTH, TEACHER_WIDTH = 41, 30, 37, 5, 8
ALL = [forward_kl, reverse_kl, jsd, total_variation, acceptance, lk]
ALL += [partial(jsd, beta=0.2), partial(forward_kl, t_squared=True)]
ALL += [as_divergence({"forward_kl": 0.5, "total_variation": 2.0})]
WITH_FORM = [*ALL[:7], partial(lk, eta=1.0)]


class Pair:
    """Random hidden states and heads; the student's head has padding rows with large logits."""

    def __init__(self, dtype: torch.dtype = torch.float64, **head: float):
        generator = torch.Generator().manual_seed(0)
        make = partial(torch.randn, generator=generator)
        self.hidden = make(T, STUDENT_WIDTH).to(dtype).requires_grad_()
        self.weight = make(PADDED_V, STUDENT_WIDTH).to(dtype)
        self.weight[V:] *= 30
        self.weight.requires_grad_()
        self.bias = make(PADDED_V).to(dtype).requires_grad_()
        self.student = Head(self.weight, self.bias, **head)
        self.teacher_hidden = make(T, TEACHER_WIDTH).to(dtype)
        self.teacher = Head(make(V, TEACHER_WIDTH).to(dtype), make(V).to(dtype))
        self.mask = torch.rand(T, generator=generator) > 0.3

    def logits(self) -> tuple[Tensor, Tensor]:
        return self.student.logits(self.hidden)[:, :V], self.teacher.logits(self.teacher_hidden)

    def fused(self, **options):
        return fused_linear_loss(
            self.hidden, self.student, self.teacher_hidden, self.teacher, **options
        )

    def gradients(self, loss: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(3 * loss, (self.hidden, self.weight, self.bias))


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("chunk_size", [1, 18, 128])
def test_equals_the_plain_loss(divergence, temperature: float, chunk_size: int) -> None:
    pair = Pair()
    loss, sums = pair.fused(
        divergence=divergence, temperature=temperature, mask=pair.mask, chunk_size=chunk_size
    )
    student, teacher = pair.logits()
    plain = divergence(student, teacher, temperature)[pair.mask].sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)
    agree = (student.argmax(-1) == teacher.argmax(-1))[pair.mask].sum()
    assert torch.allclose(sums["divergence"], plain)
    assert torch.allclose(sums["alpha"], alpha(student, teacher)[pair.mask].sum())
    assert (sums["agreement"], sums["tokens"]) == (agree, pair.mask.sum())
    assert not any(value.requires_grad for value in sums.values())


@pytest.mark.parametrize("divergence", ALL)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("head", [{"scale": 0.5}, {"softcap": 3.0}, {"scale": 2.0, "softcap": 4.0}])
def test_scale_and_soft_cap_of_either_head(divergence, temperature: float, head) -> None:
    pair = Pair(**head)
    pair.teacher = replace(pair.teacher, scale=0.7, softcap=2.5)
    loss, _ = pair.fused(divergence=divergence, temperature=temperature, chunk_size=10)
    plain = divergence(*pair.logits(), temperature).sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


class Shapes(TorchDispatchMode):
    """The shapes of all tensors that are made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = out if isinstance(out, tuple | list) else [out]
        self.seen |= {tuple(one.shape) for one in made if isinstance(one, Tensor)}
        return out


@pytest.mark.parametrize("divergence", [forward_kl, lk])
def test_logits_exist_for_a_chunk_of_tokens_only(divergence) -> None:
    pair = Pair()
    with Shapes() as shapes:
        pair.fused(divergence=divergence, chunk_size=16)[0].backward()
    wide = [shape for shape in shapes.seen if shape[-1:] == (V,) and len(shape) > 1]
    assert max(shape[-2] for shape in wide) == BLOCK_ROWS < T  # a chunk's buffer is whole blocks


def test_a_chunk_is_as_many_tokens_as_the_draft_is_wide() -> None:
    assert [chunk_tokens(width, None) for width in (192, 512, 2048)] == [512, 512, 2048]
    assert chunk_tokens(2048, 100) == 100
    head, hidden, other = torch.randn(3, 600), torch.randn(700, 600), torch.randn(700, 2)
    with Shapes() as shapes:
        fused_linear_loss(hidden, head, other, torch.randn(3, 2))
    assert {shape[0] for shape in shapes.seen if shape[1:] == (600,)} >= {600, 100}


def test_gradient_matches_finite_differences() -> None:
    pair = Pair()

    def fused(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        head = Head(weight, bias, softcap=5.0)
        return fused_linear_loss(hidden, head, pair.teacher_hidden, pair.teacher, chunk_size=16)[0]

    assert torch.autograd.gradcheck(fused, (pair.hidden, pair.weight, pair.bias), fast_mode=True)


@pytest.mark.parametrize("padded", ["student", "teacher"])
def test_padding_rows_are_cut_off_either_side(padded: str) -> None:  # cases VOC-PAD, VOC-ZERO
    torch.manual_seed(0)
    hidden, other = torch.randn(7, 4), torch.randn(7, 6)
    head, teacher = torch.randn(12, 4), torch.randn(12, 6)
    expected = fused_linear_loss(hidden, head, other, teacher)
    noise = [torch.cat([w, 50 * torch.randn(5, w.shape[1])]) for w in (head, teacher)]
    if padded == "student":
        found = fused_linear_loss(hidden, noise[0], other, teacher)
    else:
        found = fused_linear_loss(hidden, head, other, noise[1])
    both = fused_linear_loss(hidden, noise[0], other, noise[1], vocabulary_size=12)
    assert expected[0] == found[0] == both[0]
    assert expected[1] == found[1] == both[1]


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl])
def test_no_token_is_a_zero_on_the_graph(divergence) -> None:  # case KD-EMPTY
    pair = Pair(torch.float32)
    loss, sums = pair.fused(divergence=divergence, mask=torch.zeros(T, dtype=torch.bool))
    assert loss.item() == 0.0
    assert all(value.item() == 0.0 for value in sums.values())
    assert all(not gradient.any() for gradient in pair.gradients(loss))


def test_masked_tokens_get_no_gradient_and_no_look() -> None:
    pair = Pair()
    with torch.no_grad():
        pair.hidden[~pair.mask] = torch.nan
    loss, _ = pair.fused(mask=pair.mask)
    hidden, weight, _ = pair.gradients(loss)
    assert not hidden[~pair.mask].any()
    assert weight.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("divergence", [forward_kl, jsd])
@pytest.mark.parametrize("ids", [8192, 14])  # one block, and three with a short last one
def test_half_precision(dtype: torch.dtype, divergence, ids: int, monkeypatch) -> None:
    monkeypatch.setattr(chunked, "BLOCK_IDS", ids)
    pair = Pair(dtype)
    with Shapes() as shapes:
        loss, _ = pair.fused(divergence=divergence, chunk_size=16)
    assert ((ids, STUDENT_WIDTH) in shapes.seen) == (ids < V)
    exact = Pair()
    with torch.no_grad():
        for name in ("hidden", "weight", "bias"):
            getattr(exact, name).copy_(getattr(pair, name).double())
        exact.teacher_hidden.copy_(pair.teacher_hidden.double())
        exact.teacher.weight.copy_(pair.teacher.weight.double())
    plain = divergence(*exact.logits()).sum()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(plain.item(), rel=0.02)
    for ours, theirs in zip(pair.gradients(loss), exact.gradients(plain), strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - theirs).norm() < 0.03 * theirs.norm()


def test_fp32_parameters_with_bf16_products() -> None:
    pair = Pair(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = pair.fused(compute_dtype=torch.bfloat16)
        exact, _ = pair.fused()
    plain = forward_kl(*pair.logits()).sum()
    found, expected = pair.gradients(exact), pair.gradients(plain)
    # The caller's autocast does not reach in: it would round the gradients' products too.
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, expected, strict=True))
    assert loss.item() == pytest.approx(plain.item(), rel=0.02)
    assert exact.item() == pytest.approx(plain.item(), rel=1e-5)
    assert all(gradient.dtype == torch.float32 for gradient in pair.gradients(loss))


@pytest.mark.parametrize("divergence", [forward_kl, reverse_kl, jsd, acceptance])
def test_a_bias_of_minus_infinity_removes_a_token(divergence) -> None:
    pair = Pair()
    with torch.no_grad():
        pair.bias[3] = -torch.inf
        pair.teacher.bias[3] = -torch.inf
    loss, _ = pair.fused(divergence=divergence)
    plain = divergence(*pair.logits()).sum()
    assert loss.isfinite()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


def test_hard_labels() -> None:
    pair = Pair()
    labels = torch.arange(T) % V
    mixture = as_divergence({"forward_kl": 1.0, "cross_entropy": 0.3})
    loss, _ = pair.fused(
        divergence=mixture, temperature=0.6, mask=pair.mask, labels=labels, chunk_size=9
    )
    plain = mixture(*pair.logits(), 0.6, labels)[pair.mask].sum()
    assert torch.allclose(loss, plain)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs)


def test_frozen_student_parts_get_no_gradient() -> None:
    pair = Pair()
    pair.weight.requires_grad_(False)
    loss, _ = pair.fused()
    loss.backward()
    assert pair.weight.grad is None
    assert pair.hidden.grad is not None
    with torch.no_grad():
        assert torch.equal(pair.fused()[0], loss.detach())


def test_a_retained_graph_gives_the_same_gradients_again() -> None:
    pair = Pair()
    loss, _ = pair.fused()
    loss.backward(retain_graph=True)
    first = pair.weight.grad.clone()
    loss.backward()
    assert torch.equal(pair.weight.grad, 2 * first)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"mask": torch.ones(3, dtype=torch.bool)}, "same tokens"),
        ({"labels": torch.ones(3, dtype=torch.long)}, "same tokens"),
        ({"vocabulary_size": 31}, "real ids"),
        ({"chunk_size": 0}, "1 or more"),
        ({"student_bias": torch.zeros(PADDED_V)}, "drop one"),
        ({"temperature": 0.0}, "above 0"),
        ({"divergence": "nonsense"}, "choose from"),
    ],
)
def test_refusals_name_the_remedy(change: dict, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Pair().fused(**change)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch.compile's own imports
@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("divergence", WITH_FORM)
def test_compiled_equals_eager(divergence, temperature) -> None:
    pair = Pair(torch.float32)
    settings = {"divergence": divergence, "temperature": temperature, "chunk_size": 18}
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):  # else it runs uncompiled
        loss, sums = pair.fused(compiled=True, **settings)
    plain, expected = pair.fused(**settings)
    assert loss.item() == pytest.approx(plain.item(), rel=1e-5)
    assert all(torch.allclose(sums[name], expected[name]) for name in sums)
    for ours, theirs in zip(pair.gradients(loss), pair.gradients(plain), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def of_form(divergence, student: Tensor, teacher: Tensor, temperature: float = 1.0):
    """The scores of its closed form, run as it stands, and the gradient."""
    form = closed_form(divergence)
    assert form is not None
    gradient = student.clone()
    kernel = closed_kernel(form, divergence, lambda rows: rows)
    return kernel(gradient, teacher, temperature, None), gradient


def of_definition(divergence, student: Tensor, teacher: Tensor, temperature: float = 1.0):
    gradient = student.clone()
    return autograd_kernel(divergence)(gradient, teacher, temperature, None), gradient


@pytest.mark.parametrize("divergence", WITH_FORM)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_closed_form_equals_the_definition(divergence, temperature: float, monkeypatch) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 4, 9, dtype=torch.float64)
    student[1, 2] = teacher[1, 2] = -torch.inf
    student[2] = 2 * teacher[2]  # both favour one token
    wanted, wanted_gradient = of_definition(divergence, student, teacher, temperature)
    monkeypatch.setattr(closed_forms, "autograd_kernel", None)  # its own: no way out
    found, gradient = of_form(divergence, student, teacher, temperature)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two, check_dtype=False)
    torch.testing.assert_close(gradient, wanted_gradient)


@pytest.mark.parametrize("divergence", WITH_FORM)
@pytest.mark.parametrize("side", ["student", "teacher"])
def test_closed_form_equals_the_definition_with_tokens_that_cannot_be(divergence, side) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 4, 9, dtype=torch.float64)
    (student if side == "student" else teacher)[0, 3] = -torch.inf
    found, gradient = of_form(divergence, student, teacher)
    wanted, wanted_gradient = of_definition(divergence, student, teacher)
    torch.testing.assert_close(found.values, wanted.values)
    torch.testing.assert_close(gradient, wanted_gradient, equal_nan=True)


@pytest.mark.parametrize("divergence", WITH_FORM)
def test_closed_form_equals_the_definition_where_probabilities_underflow(divergence) -> None:
    """e^-103.6 is the smallest number of fp32, and half of it is 0; of e^-200 nothing is left."""
    student, teacher = torch.tensor([[0.0, -103.6, -1.0]]), torch.tensor([[0.0, -200.0, -2.0]])
    for one, two in ((student, teacher), (teacher, student)):
        found, gradient = of_form(divergence, one, two)
        wanted, wanted_gradient = of_definition(divergence, one, two)
        torch.testing.assert_close(found.values, wanted.values)
        torch.testing.assert_close(gradient, wanted_gradient)


def test_a_mixture_or_another_option_has_no_closed_form() -> None:
    assert closed_form(as_divergence({"forward_kl": 0.5, "acceptance": 0.5})) is None
    assert closed_form(partial(forward_kl, t_squared=True)) is None


def test_one_setting_is_compiled_once() -> None:
    assert as_divergence("jsd", beta=0.2) is as_divergence("jsd", beta=0.2)
    assert as_divergence("jsd", beta=0.2) is not as_divergence("jsd", beta=0.3)


def test_closed_form_of_acceptance_at_opposite_logits_of_60_at_a_low_temperature() -> None:
    student = torch.tensor([[60.0, -60.0, -60.0], [60.0, 0.0, -60.0]])
    teacher = torch.tensor([[-60.0, 60.0, 0.0], [-60.0, 30.0, 60.0]])
    found, gradient = of_form(acceptance, student, teacher, 0.05)
    # Logits ±1200: min(p, q) is e^-2400 on all tokens of the first row, and e^-1200 on the middle
    # one of the second, beside which the others are nothing.
    assert found.values.tolist() == pytest.approx([2400.0 - math.log(3), 1200.0])
    # The smaller is the draft's on the last two tokens: (q·2 − u)/3; on the middle one: q − u.
    assert gradient[0].tolist() == pytest.approx([x / 0.05 for x in (2 / 3, -1 / 3, -1 / 3)])
    assert gradient[1].tolist() == pytest.approx([x / 0.05 for x in (1.0, -1.0, 0.0)])
