import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from distill.losses.tokens import predicting_positions
from distill.teacher.live import LiveTeacher


def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config)


def batch(ids: Tensor, supervised: list[list[int]]) -> dict[str, Tensor]:
    return {"input_ids": ids, "supervised": torch.tensor(supervised).bool()}


def test_the_state_before_a_supervised_token_predicts_it() -> None:
    marks = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]]).bool()
    # Row 0 supervises tokens 2 and 3; row 1 tokens 0 (which nothing predicts) and 1.
    assert predicting_positions(marks).tolist() == [1, 2, 4]


def test_signal_is_the_targets_distribution_where_it_is_wanted() -> None:
    model = target()
    one = batch(torch.randint(0, 40, (2, 5)), [[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]])
    expected = model(input_ids=one["input_ids"]).logits.detach()
    signal = LiveTeacher(model).signal(one, predicting_positions(one["supervised"]))
    assert not signal.hidden.requires_grad
    torch.testing.assert_close(
        signal.head.logits(signal.hidden),
        torch.stack([expected[0, 1], expected[0, 3], expected[1, 0]]),
    )


def test_padding_on_the_right_changes_nothing_even_when_it_is_the_eos_token() -> None:
    teacher = LiveTeacher(target())
    ids = torch.randint(0, 40, (1, 4))
    short = batch(ids, [[0, 0, 1, 1]])
    padded = batch(torch.nn.functional.pad(ids, (0, 3), value=2), [[0, 0, 1, 1, 0, 0, 0]])
    signals = [teacher.signal(b, predicting_positions(b["supervised"])) for b in (short, padded)]
    torch.testing.assert_close(signals[0].hidden, signals[1].hidden)


def test_head_holds_the_common_ids_only() -> None:
    one = batch(torch.randint(0, 40, (1, 4)), [[0, 1, 1, 1]])
    signal = LiveTeacher(target(), vocabulary_size=30).signal(one, torch.tensor([0]))
    assert signal.head.logits(signal.hidden).shape == (1, 30)


def test_the_target_is_frozen_and_in_eval() -> None:
    model = target().train()
    LiveTeacher(model)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
