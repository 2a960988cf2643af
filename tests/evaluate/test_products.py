"""The fused loss's time beside that of its matrix products."""

import pytest
import torch

from distill.evaluate.products import LossLine, LossTimes, Shapes, time_loss
from distill.evaluate.tables import as_text, loss_table
from distill.losses import forward_kl

SHAPES = Shapes(20, 96, 16, 32, 8, torch.float32)


def test_both_are_timed_as_often() -> None:
    times = time_loss(SHAPES, forward_kl, compiled=False, repetitions=3)
    assert len(times.products) == len(times.loss) == len(times.shares) == 6
    assert min(times.products + times.loss) > 0


def test_table_by_hand() -> None:
    """Products 1 and 2 s of losses of 2 and 2.5 s: shares 0.5 and 0.8; 20 tokens in 2.25 s."""
    times = LossTimes([1.0, 2.0], [2.0, 2.5])
    assert times.shares == pytest.approx([0.5, 0.8])
    text = as_text(loss_table([LossLine("jsd", SHAPES, times)]), 130)
    assert "float32" in text
    assert "0.65 (0.50–0.80)" in text
    assert " 9 " in text
