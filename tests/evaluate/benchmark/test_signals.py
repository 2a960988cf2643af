"""Exact codecs agree, the tail is biased, draws are noisy but not biased."""

import math

import pytest
import torch
from transformers import LlamaForCausalLM

from distill.evaluate.benchmark.signals import _angle, _length, _Moments, compare_codecs
from distill.teacher.codecs import Hidden, Samples, TopKTail
from distill.teacher.live import LiveTeacher
from distill.training.objective import Objective
from tests.tiny import tiny_llama


def llama(width: int, seed: int) -> LlamaForCausalLM:
    shape = {"num_hidden_layers": 1, "num_key_value_heads": 2, "initializer_range": 0.3}
    return tiny_llama(seed, hidden_size=width, **shape)


def test_codecs_against_the_exact_gradient() -> None:
    batches = []
    for _ in range(2):
        supervised = torch.ones(2, 12, dtype=torch.bool)
        batches.append({"input_ids": torch.randint(0, 40, (2, 12)), "supervised": supervised})
    codecs = {
        "hidden": Hidden(),
        "all": TopKTail(k=40, dtype="float32"),
        "two": TopKTail(k=2),
        "draws": Samples(draws=4),
        "many": Samples(draws=64),
    }
    teacher, said = LiveTeacher(llama(16, 0)), []
    found = compare_codecs(
        llama(8, 1), teacher, batches, codecs, Objective(), 40, repetitions=12, progress=said.append
    )
    lines = {one.codec: one for one in found}
    for name in ("hidden", "all"):
        assert lines[name].angle < 0.05
        assert lines[name].norm_ratio == pytest.approx(1.0, abs=1e-4)
    assert lines["hidden"].bytes_per_token == 64
    assert lines["two"].bytes_per_token == 2 * 6 + 2
    assert lines["two"].noise < 1e-5
    assert lines["two"].bias_angle > 5  # not seeing the tail costs direction
    assert lines["two"].bias_angle == pytest.approx(lines["two"].angle, abs=1e-3)
    # What draws nothing is encoded once; each encoding is told of when it is done.
    assert [one.repetitions for one in found] == [1, 1, 1, 12, 12]
    assert len(said) == 1 + sum(one.repetitions for one in found)
    assert said[:2] == ["exact gradient of 44 tokens", "hidden, encoding 1 of 1"]
    assert said[-1] == "many, encoding 12 of 12"
    # Sixteen times the draws: a quarter of the noise; and averaging takes noise, not bias.
    assert lines["draws"].noise / lines["many"].noise == pytest.approx(4, rel=0.35)
    assert lines["draws"].bias_angle < 0.6 * lines["draws"].angle


def test_moments_by_hand() -> None:
    """Gradients (2, 1) and (2, −1) around the exact (1, 0): mean (2, 0), deviation √2."""
    moments = _Moments(torch.tensor([1.0, 0.0], dtype=torch.double))
    moments.add(torch.tensor([2.0, 1.0], dtype=torch.double))
    moments.add(torch.tensor([2.0, -1.0], dtype=torch.double))
    found = moments.fidelity("x", 1.0)
    assert found.norm_ratio == pytest.approx(2.0)
    assert found.bias_angle == pytest.approx(0.0)
    assert found.angle == pytest.approx(math.degrees(math.atan(0.5)))
    assert found.noise == pytest.approx(math.sqrt(2))  # unbiased: (1 + 1) / (2 − 1)


def test_lengths_and_angles_of_many_float32_numbers() -> None:
    """After 2²⁴ ones, float32 would add no further one; a tilt of 1e-3 over all of them."""
    ones = torch.ones(2**24 + 2**20)
    assert _length(ones) == pytest.approx(math.sqrt(len(ones)), rel=1e-9)
    tilted = ones.clone()
    tilted[::2] += 1e-3
    tilted[1::2] -= 1e-3
    assert _angle(tilted, ones) == pytest.approx(math.degrees(math.atan(1e-3)), rel=1e-4)
    assert _angle(ones, ones) == 0.0
