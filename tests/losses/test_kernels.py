"""What is told of every token, and when a loss is compiled: only where it works and pays."""

import pytest
import torch

from distill.losses.kernels import SMALLEST_VOCABULARY, agreement, compiles, worth_compiling

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forgotten():
    compiles.cache_clear()
    yield
    compiles.cache_clear()


def test_a_machine_without_a_compiler_runs_eagerly_and_says_why(monkeypatch, caplog) -> None:
    tried = []

    def broken(function):
        tried.append(function)
        raise RuntimeError("no working C++ compiler")

    monkeypatch.setattr(torch, "compile", broken)
    with caplog.at_level("INFO", "distill"):
        assert not worth_compiling(CPU, SMALLEST_VOCABULARY)
        assert not worth_compiling(CPU, SMALLEST_VOCABULARY)
    assert len(tried) == 1  # tried once, not for every micro-batch
    assert "no working C++ compiler" in caplog.text


def test_a_small_vocabulary_is_not_compiled(monkeypatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert not worth_compiling(CPU, SMALLEST_VOCABULARY - 1)
    assert worth_compiling(CPU, SMALLEST_VOCABULARY)


def test_agreement_is_about_one_token() -> None:
    s = torch.tensor([[20.0, 20.000002], [1.0, 2.0], [3.0, 3.0], [-torch.inf, 0.0]])
    t = torch.tensor([[20.5, 20.4], [0.0, 5.0], [0.0, 1.0], [-torch.inf, 0.0]])
    assert agreement(s, t).tolist() == [0, 1, 1, 1]  # of two that are equal, either
