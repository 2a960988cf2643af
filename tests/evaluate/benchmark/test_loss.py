"""The fused loss's time beside that of its matrix products."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from distill.evaluate.benchmark import loss
from distill.evaluate.benchmark.loss import LossLine, LossTimes, Shapes, time_loss
from distill.evaluate.report.tables import as_text, loss_table
from distill.losses import FORWARD_KL

SHAPES = Shapes(20, 96, 16, 32, 8, torch.float32)


def test_both_are_timed_as_often() -> None:
    times = time_loss(SHAPES, FORWARD_KL, compiled=False, repetitions=3)
    assert len(times.products) == len(times.loss) == len(times.shares) == 6
    assert min(times.products + times.loss) > 0


def test_each_time_is_of_its_own_arm_in_abba_order(monkeypatch) -> None:
    """A clock of which the products take 1 s and the loss 2 s."""
    clock, called = [0.0], []

    def arm(name: str, seconds: float):
        def run() -> None:
            called.append(name)
            clock[0] += seconds

        return lambda *_: run

    monkeypatch.setattr(loss, "_products", arm("A", 1.0))
    monkeypatch.setattr(loss, "_loss", arm("B", 2.0))
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    times = time_loss(SHAPES, FORWARD_KL, compiled=False, repetitions=2)
    assert (times.products, times.loss) == ([1.0] * 4, [2.0] * 4)
    assert "".join(called) == "ABAB" + "ABBA" * 2  # two calls of each are not timed


def test_products_alone_are_those_of_the_loss() -> None:
    """Each of 20 · 96 logits: 16 of the draft's, 32 of the target's, 2 · 16 of the gradients'."""
    in_place = {torch.ops.aten.addmm_: lambda _, a, b, **__: 2 * a[0] * a[1] * b[1]}
    counted = []
    for run in (loss._products(SHAPES), loss._loss(SHAPES, FORWARD_KL, compiled=False)):
        with FlopCounterMode(display=False, custom_mapping=in_place) as counter:
            run()
        counted.append(counter.get_total_flops())
    assert counted == [2 * 20 * 96 * (16 + 32 + 2 * 16)] * 2


def test_table_by_hand() -> None:
    """Products 2 and 1.5 s of losses of 2.5 and 3 s; 20 tokens in 2.75 s."""
    times = LossTimes([2.0, 1.5], [2.5, 3.0])
    assert times.shares == pytest.approx([0.8, 0.5])
    text = as_text(loss_table([LossLine("jsd", SHAPES, times)]), 130)
    assert "float32" in text
    assert "0.65 (0.50–0.80)" in text
    assert "0.60 │" in text
    assert " 7 │" in text
