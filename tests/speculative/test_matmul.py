"""Products of few rows, in every form, against one product in double precision."""

import pytest
import torch

from distill.speculative.matmul import FEW_ROWS, SMALL_WEIGHT, Linear


@pytest.mark.parametrize("rows", [1, 2, 9, 40])
def test_bf16_products(rows):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, rows, 64), torch.randn(48, 64), torch.randn(48)
    got = Linear(weight.bfloat16(), bias.bfloat16())(x.bfloat16())
    assert got.shape == (1, rows, 48)
    torch.testing.assert_close(
        got.float(), torch.nn.functional.linear(x, weight, bias), atol=0.4, rtol=0.02
    )


@pytest.mark.parametrize("rows", [1, 2, FEW_ROWS, FEW_ROWS + 1])
def test_a_small_bf16_weight_is_multiplied_in_fp32(rows):
    """And rounded where a bf16 product is; with many rows, or a large weight, it is not."""
    torch.manual_seed(0)
    x, weight = torch.randn(1, rows, 64).bfloat16(), torch.randn(48, 64).bfloat16()
    bias = torch.randn(48).bfloat16()
    linear = Linear.of(weight, bias)
    assert linear.wide is not None
    exact = (x.float() @ weight.float().T).bfloat16() + bias
    tolerance = 0.0 if rows <= FEW_ROWS else 0.02
    torch.testing.assert_close(linear(x), exact, rtol=tolerance, atol=tolerance * 4)
    assert Linear.of(torch.zeros(SMALL_WEIGHT // 64 + 1, 64, dtype=torch.bfloat16)).wide is None
    assert Linear.of(weight.float()).wide is None
