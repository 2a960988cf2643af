"""Divergences written out for the compiler equal their definitions, run as they stand."""

import math

import pytest
import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses import Mixture, kernels
from distill.losses.closed_forms import closed_form
from distill.losses.kernels import autograd_kernel, closed_kernel
from distill.losses.mixture import BY_NAME, Term


def alone(name: str, **options: float) -> Mixture:
    """The mixture of this divergence alone."""
    return Mixture.of({name: 1.0}, **options)


forward_kl, reverse_kl, jsd, total_variation, acceptance, lk = (alone(name) for name in BY_NAME)
WITH_FORM = [forward_kl, reverse_kl, jsd, total_variation, acceptance, lk]
WITH_FORM += [alone("jsd", beta=0.2), alone("lk", eta=1.0)]
WITH_FORM += [Mixture.of({"forward_kl": 0.5, "total_variation": 2.0, "acceptance": 0.3})]


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
    monkeypatch.setattr(kernels, "autograd_kernel", None)  # its own: no way out
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


def test_labels_have_no_closed_form() -> None:
    assert closed_form(Mixture.of({"forward_kl": 0.5, "cross_entropy": 0.5})) is None


def test_one_setting_is_compiled_once() -> None:
    """What is compiled for a mixture serves every equal one."""
    assert hash(alone("jsd", beta=0.2)) == hash(alone("jsd", beta=0.2))
    assert alone("jsd", beta=0.2) == alone("jsd", beta=0.2, eta=1.0)  # an eta is none of jsd's
    assert alone("jsd", beta=0.2) != alone("jsd", beta=0.3)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("divergence", WITH_FORM)
def test_closed_form_reads_half_precision_and_computes_in_fp32(divergence, dtype) -> None:
    torch.manual_seed(0)
    student, teacher = (3 * torch.randn(2, 4, 50)).to(dtype)
    found, gradient = of_form(divergence, student, teacher)
    wanted, wanted_gradient = of_definition(divergence, student.float(), teacher.float())
    assert gradient.dtype == dtype
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, wanted_gradient.to(dtype), rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("divergence", WITH_FORM)
def test_no_loss_is_below_zero_where_both_nearly_agree(divergence) -> None:
    torch.manual_seed(0)
    teacher = torch.randn(32, 500)
    scores, _ = of_form(divergence, teacher + 1e-5 * torch.randn(32, 500), teacher)
    assert (scores.values >= 0).all()


def test_acceptance_where_its_sum_has_lost_its_digits() -> None:
    """Numbers below 1e-38 have few digits, and their inverses are infinite."""
    student = torch.tensor([[0.0, -95.0, -101.0, -102.0]])
    teacher = torch.tensor([[-102.5, 0.0, -101.5, -100.0]])
    found, gradient = of_form(acceptance, student, teacher)
    wanted, wanted_gradient = of_definition(acceptance, student.double(), teacher.double())
    torch.testing.assert_close(found.values, wanted.values.float())
    torch.testing.assert_close(gradient, wanted_gradient.float())


def test_jsd_of_a_token_that_the_draft_has_a_subnormal_rest_of() -> None:
    student, teacher = torch.tensor([[0.0, -103.0]]), torch.tensor([[0.0, 1.0]])
    found, gradient = of_form(jsd, student, teacher)
    wanted, wanted_gradient = of_definition(jsd, student.double(), teacher.double())
    torch.testing.assert_close(found.values, wanted.values.float())
    torch.testing.assert_close(gradient, wanted_gradient.float(), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("name", "option"), [("jsd", ("beta", 1.0)), ("lk", ("eta", -1.0))])
def test_what_the_definition_refuses_the_form_refuses(name: str, option) -> None:
    with pytest.raises(UserError, match=r"(beta is 1|eta is -1)\.0"):
        closed_form(Mixture((Term(name, options=(option,)),)))


@pytest.mark.parametrize("offset", [30.0, 1000.0])
def test_forward_kl_keeps_its_digits_under_an_offset(offset: float) -> None:
    torch.manual_seed(0)
    teacher = torch.randn(8, 500)
    teacher = torch.round(teacher * 4096) / 4096  # so that the offsets below round nothing
    student = teacher + 80 / 4096 * torch.randint(-1, 2, teacher.shape)
    found, _ = of_form(forward_kl, student + offset, teacher - offset)
    wanted = forward_kl(student.double(), teacher.double()).float()
    torch.testing.assert_close(found.values, wanted, rtol=5e-3, atol=0)
