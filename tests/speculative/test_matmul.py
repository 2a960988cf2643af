"""Products of few rows: every form against double precision, and how one of them is chosen."""

import json

import pytest
import torch

from distill.speculative import matmul_form
from distill.speculative.matmul import SMALL_WEIGHT, Linear
from distill.speculative.matmul_form import (
    FEW_ROWS,
    FORMS,
    WIDE_FORMS,
    WORTH_MEASURING,
    choose_forms,
    forced,
)


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """A machine on which nothing was measured yet."""
    monkeypatch.setenv("DISTILL_CACHE", str(tmp_path))
    monkeypatch.setattr(matmul_form, "_chosen", {})
    return tmp_path / "products"


def worth_measuring(rows: int = 64) -> torch.Tensor:
    return torch.randn(rows, WORTH_MEASURING // rows)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("biased", [False, True])
def test_every_form_is_the_same_product(form, rows, dtype, biased):
    torch.manual_seed(0)
    x, weight = torch.randn(1, rows, 64, dtype=dtype), torch.randn(48, 64, dtype=dtype)
    bias = torch.randn(48, dtype=dtype)
    with forced(form):
        linear = Linear.of(weight, bias if biased else None)
    got = linear(x)
    expected = x.double() @ weight.double().T + (bias.double() if biased else 0)
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 9, 40])
@pytest.mark.parametrize("form", [*FORMS, *WIDE_FORMS])
def test_bf16_products(form, rows):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(1, rows, 64), torch.randn(48, 64), torch.randn(48)
    with forced(form):
        got = Linear.of(weight.bfloat16(), bias.bfloat16())(x.bfloat16())
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
    large = torch.zeros(SMALL_WEIGHT // 64 + 1, 64, dtype=torch.bfloat16)
    with forced("linear"):
        assert Linear.of(large).wide is None
    assert Linear.of(weight.float()).wide is None


def test_the_fastest_form_is_chosen(empty_cache, monkeypatch):
    """`F.linear` made slow loses for every number of rows; made the only quick one, it wins."""

    def slow(form):
        return lambda weight, x: sum(form(weight, x) for _ in range(20))

    forms = dict(FORMS)
    monkeypatch.setitem(FORMS, "linear", slow(forms["linear"]))
    assert "linear" not in choose_forms(worth_measuring(), None)
    for name, form in forms.items():
        monkeypatch.setitem(FORMS, name, form if name == "linear" else slow(form))
    assert set(choose_forms(worth_measuring(128), None)) == {"linear"}


def test_a_choice_is_made_once_per_machine(empty_cache, monkeypatch):
    """In the process by shape and threads, and for later processes in a file that says where."""
    chosen = choose_forms(worth_measuring(), None)
    (file,) = empty_cache.iterdir()
    record = json.loads(file.read_text())
    assert record["threads"] == torch.get_num_threads()
    assert record["torch"] == torch.__version__
    shape = f"64x{WORTH_MEASURING // 64} float32"
    assert record["forms"] == {shape: list(chosen)}

    record["forms"][shape] = ["padded"] * FEW_ROWS
    file.write_text(json.dumps(record))
    assert choose_forms(worth_measuring(), None) == chosen
    monkeypatch.setattr(matmul_form, "_chosen", {})
    assert choose_forms(worth_measuring(), None) == ("padded",) * FEW_ROWS
    choose_forms(worth_measuring(128), None)
    assert len(json.loads(file.read_text())["forms"]) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"forms": {"64x512 float32": ["magic"]}}'])
def test_a_file_that_is_none_of_ours_is_measured_over(empty_cache, content, monkeypatch):
    choose_forms(worth_measuring(), None)
    (file,) = empty_cache.iterdir()
    file.write_text(content)
    monkeypatch.setattr(matmul_form, "_chosen", {})
    assert set(choose_forms(worth_measuring(), None)) <= {*FORMS}
    assert json.loads(file.read_text())["forms"]


@pytest.mark.parametrize(
    "weight", [torch.zeros(8, 8), torch.zeros(WORTH_MEASURING, 2, device="meta")]
)
def test_tiny_weights_and_other_devices_are_not_measured(empty_cache, weight):
    assert set(choose_forms(weight, None)) == {"linear"}
    assert not empty_cache.exists()


def test_a_form_that_does_not_exist_cannot_be_forced():
    with pytest.raises(ValueError, match="transposed"), forced("diagonal"):
        pass
