"""The live teacher's signal is the target's own distribution; compiled blocks change nothing."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from distill.losses.tokens import predicting_positions
from distill.teacher import live
from distill.teacher.head import last_hidden
from distill.teacher.live import LiveTeacher
from tests.tiny import tiny_llama

# Of torch.compile's own imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

BATCH = {"input_ids": torch.arange(24).reshape(2, 12)}


@pytest.fixture
def target() -> LlamaForCausalLM:
    return tiny_llama(initializer_range=0.3)


def batch(ids: Tensor, supervised: list[list[int]]) -> dict[str, Tensor]:
    return {"input_ids": ids, "supervised": torch.tensor(supervised).bool()}


def compiled_blocks(model: LlamaForCausalLM) -> list[str]:
    return [name for name, one in model.named_modules() if one._compiled_call_impl is not None]


def test_the_state_before_a_supervised_token_predicts_it() -> None:
    marks = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).bool()
    # Row 0 supervises tokens 2 and 3; row 1 tokens 0 (which nothing predicts) and 1.
    assert predicting_positions(marks).tolist() == [1, 2, 4]


def test_signal_is_the_targets_distribution_where_it_is_wanted(target) -> None:
    one = batch(torch.randint(0, 40, (2, 5)), [[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    expected = target(input_ids=one["input_ids"]).logits.detach()
    signal = LiveTeacher(target).signal(one, predicting_positions(one["supervised"]))
    assert not signal.hidden.requires_grad
    torch.testing.assert_close(
        signal.head.logits(signal.hidden),
        torch.stack([expected[0, 1], expected[0, 3], expected[1, 0]]),
    )


def test_padding_on_the_right_changes_nothing_even_when_it_is_the_eos_token(target) -> None:
    teacher = LiveTeacher(target)
    ids = torch.randint(0, 40, (1, 4))
    short = batch(ids, [[0, 0, 1, 1]])
    padded = batch(torch.nn.functional.pad(ids, (0, 3), value=2), [[0, 0, 1, 1, 0, 0, 0]])
    signals = [teacher.signal(b, predicting_positions(b["supervised"])) for b in (short, padded)]
    torch.testing.assert_close(signals[0].hidden, signals[1].hidden)


def test_head_holds_the_common_ids_only(target) -> None:
    one = batch(torch.randint(0, 40, (1, 4)), [[0, 1, 1, 1]])
    signal = LiveTeacher(target, vocabulary_size=30).signal(one, torch.tensor([0]))
    assert signal.head.logits(signal.hidden).shape == (1, 30)


def test_the_target_is_frozen_and_in_eval(target) -> None:
    LiveTeacher(target.train())
    assert not target.training
    assert not any(p.requires_grad for p in target.parameters())


def test_a_small_target_stays_as_it_is(target) -> None:
    LiveTeacher(target, target.config.vocab_size, compiled=True)
    assert not compiled_blocks(target)


def test_nothing_is_compiled_that_was_not_asked_for(target, monkeypatch) -> None:
    monkeypatch.setattr(live, "worth_compiling", lambda device, size: True)
    LiveTeacher(target, target.config.vocab_size)
    assert not compiled_blocks(target)


def test_each_block_of_a_large_one_is_compiled_and_nothing_around_it(target, monkeypatch) -> None:
    monkeypatch.setattr(live, "worth_compiling", lambda device, size: True)
    LiveTeacher(target, target.config.vocab_size, compiled=True)
    layers = range(target.config.num_hidden_layers)
    assert compiled_blocks(target) == [f"model.layers.{number}" for number in layers]


def test_on_a_gpu_blocks_stay_as_they_are(target, monkeypatch) -> None:
    """Any device but a CPU: there nobody measured that it pays."""
    monkeypatch.setattr(live, "worth_compiling", lambda device, size: True)
    live.compile_blocks(target.to("meta"), 0)
    assert not compiled_blocks(target)


@pytest.mark.slow
def test_compiled_states_are_the_eager_ones_whatever_the_shape(target, monkeypatch) -> None:
    monkeypatch.setattr(live, "worth_compiling", lambda device, size: True)
    with torch.no_grad():
        expected = last_hidden(target, BATCH)
        live.compile_blocks(target, 0)
        torch.testing.assert_close(last_hidden(target, BATCH), expected)
        shorter = {"input_ids": BATCH["input_ids"][:1, :7]}
        torch.testing.assert_close(last_hidden(target, shorter), expected[:1, :7])


def test_eagerly_nothing_is_traced(target) -> None:
    traced = []

    def backend(graph, inputs):
        traced.append(graph)
        return graph

    target.model.layers[0].compile(backend=backend)
    with live.eagerly(), torch.no_grad():
        last_hidden(target, BATCH)
    assert not traced
    with torch.no_grad():
        last_hidden(target, BATCH)
    assert traced
