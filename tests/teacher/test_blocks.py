"""Compiled blocks of a frozen target: the same states, and nobody else notices."""

import pytest
import torch
from transformers import LlamaForCausalLM

from distill.teacher import blocks
from distill.teacher.hidden import last_hidden
from distill.teacher.live import LiveTeacher

# Of torch.compile's own imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

BATCH = {"input_ids": torch.arange(24).reshape(2, 12)}


@pytest.fixture
def tiny_target(target) -> LlamaForCausalLM:
    return target().eval()


def compiled_blocks(model) -> list[str]:
    return [name for name, one in model.named_modules() if one._compiled_call_impl is not None]


def test_a_small_target_stays_as_it_is(tiny_target) -> None:
    LiveTeacher(tiny_target, tiny_target.config.vocab_size, compiled=True)
    assert not compiled_blocks(tiny_target)


def test_nothing_is_compiled_that_was_not_asked_for(tiny_target, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "worth_compiling", lambda device, size: True)
    LiveTeacher(tiny_target, tiny_target.config.vocab_size)
    assert not compiled_blocks(tiny_target)


def test_each_block_of_a_large_one_is_compiled_and_nothing_around_it(
    tiny_target, monkeypatch
) -> None:
    monkeypatch.setattr(blocks, "worth_compiling", lambda device, size: True)
    LiveTeacher(tiny_target, tiny_target.config.vocab_size, compiled=True)
    layers = range(tiny_target.config.num_hidden_layers)
    assert compiled_blocks(tiny_target) == [f"model.layers.{number}" for number in layers]


def test_on_a_gpu_blocks_stay_as_they_are(tiny_target, monkeypatch) -> None:
    """Any device but a CPU: there nobody measured that it pays."""
    monkeypatch.setattr(blocks, "worth_compiling", lambda device, size: True)
    blocks.compile_blocks(tiny_target.to("meta"), 0)
    assert not compiled_blocks(tiny_target)


@pytest.mark.slow
def test_compiled_states_are_the_eager_ones_whatever_the_shape(tiny_target, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "worth_compiling", lambda device, size: True)
    with torch.no_grad():
        expected = last_hidden(tiny_target, BATCH)
        blocks.compile_blocks(tiny_target, 0)
        torch.testing.assert_close(last_hidden(tiny_target, BATCH), expected)
        shorter = {"input_ids": BATCH["input_ids"][:1, :7]}
        torch.testing.assert_close(last_hidden(tiny_target, shorter), expected[:1, :7])


def test_eagerly_nothing_is_traced(tiny_target) -> None:
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    tiny_target.model.layers[0].compile(backend=backend)
    with blocks.eagerly(), torch.no_grad():
        last_hidden(tiny_target, BATCH)
    assert not traced
    with torch.no_grad():
        last_hidden(tiny_target, BATCH)
    assert traced
