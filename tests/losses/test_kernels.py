"""What is told of every token, and the kernel that needs no compiler."""

import pytest
import torch

from distill.losses import forward_kl
from distill.losses.eager import ForwardKLKernel
from distill.losses.kernels import agreement, autograd_kernel


def test_agreement_is_about_one_token() -> None:
    s = torch.tensor([[20.0, 20.000002], [1.0, 2.0], [3.0, 3.0], [-torch.inf, 0.0]])
    t = torch.tensor([[20.5, 20.4], [0.0, 5.0], [0.0, 1.0], [-torch.inf, 0.0]])
    assert agreement(s, t).tolist() == [0, 1, 1, 1]  # of two that are equal, either


def run(kernel, student, teacher, temperature):
    gradient = student.clone()
    return kernel(gradient, teacher, temperature, None), gradient


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("impossible", [False, True])
def test_forward_kl_kernel_equals_the_definition(temperature: float, impossible: bool) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 11)
    if impossible:
        student[:3, 2] = teacher[:3, 2] = -torch.inf
    found, gradient = run(ForwardKLKernel(6, 11, torch.float32), student, teacher, temperature)
    wanted, expected = run(autograd_kernel(forward_kl), student, teacher, temperature)
    for one, two in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("offset", [30.0, 1000.0])
def test_forward_kl_kernel_keeps_its_digits_under_an_offset(offset: float) -> None:
    torch.manual_seed(0)
    teacher = torch.randn(8, 500)
    teacher = torch.round(teacher * 4096) / 4096  # so that the offsets below round nothing
    student = teacher + 80 / 4096 * torch.randint(-1, 2, teacher.shape)
    kernel = ForwardKLKernel(8, 500, torch.float32)
    found, _ = run(kernel, student + offset, teacher - offset, 1.0)
    wanted = forward_kl(student.double(), teacher.double()).float()
    torch.testing.assert_close(found.values, wanted, rtol=5e-3, atol=0)
