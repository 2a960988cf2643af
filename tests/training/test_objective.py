"""Token weights, by hand and over a restart."""

import math
import os
import signal
from pathlib import Path

import pytest
import torch

from distill.losses import Head, forward_kl, fused_linear_loss
from distill.losses.entropy import entropy, head_entropy, sparse_entropy
from distill.losses.matching import mismatch
from distill.losses.sparse import draw, keep_top_k
from distill.teacher.signals import HiddenSignal
from distill.training import module
from distill.training.config import TrainerConfig
from distill.training.objective import Objective
from distill.training.optim import scale_and_clip

P = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.25, 0.25, 0.0], [1.0, 0.0, 0.0, 0.0]])
NATS = [math.log(4), 1.5 * math.log(2), 0.0]


def test_entropy_of_every_form_of_signal() -> None:
    logits = P.log()
    torch.testing.assert_close(entropy(logits), torch.tensor(NATS))
    torch.testing.assert_close(
        head_entropy(P.clamp_min(1e-30).log(), Head(torch.eye(4)), chunk_size=2), torch.tensor(NATS)
    )
    torch.testing.assert_close(sparse_entropy(keep_top_k(logits, 4)), torch.tensor(NATS))
    # Two kept of four alike, and half the mass as one: 2 · ¼ ln 4 + ½ ln 2 = 1.5 ln 2.
    kept = sparse_entropy(keep_top_k(logits[:1], 2))
    assert kept.item() == pytest.approx(1.5 * math.log(2))
    drawn = draw(logits[1:2].expand(20_000, 4), 3, generator=torch.Generator().manual_seed(0))
    assert sparse_entropy(drawn).mean().item() == pytest.approx(NATS[1], abs=0.01)


def test_entropy_weights_by_hand() -> None:
    """Slope −1: exp(−ln 4) = ¼ for four alike, 2^−1.5 for ½ ¼ ¼, 1 where the target is sure."""
    signal = HiddenSignal(P.clamp_min(1e-30).log(), Head(torch.eye(4)))
    weights = Objective(weighting="entropy", entropy_slope=-1.0).weights(signal, 512)
    torch.testing.assert_close(weights, torch.tensor([0.25, 2**-1.5, 1.0]))


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_weighted_loss_and_gradients_are_those_of_the_definition(softcap) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(7, 4, requires_grad=True), torch.randn(9, 4, requires_grad=True)
    teacher, other, weights = torch.randn(7, 5), torch.randn(9, 5), torch.rand(7)
    head = Head(weight, softcap=softcap)
    loss, sums = fused_linear_loss(
        hidden, head, teacher, Head(other), weights=weights, chunk_size=3
    )
    loss.backward()
    found = [hidden.grad, weight.grad]
    hidden.grad = weight.grad = None
    expected = (weights * forward_kl(head.logits(hidden), teacher @ other.t())).sum()
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found, [hidden.grad, weight.grad])
    assert sums["tokens"] == 7


def step(tiny, folder, monkeypatch, windows, tokens, **changes):
    class Fixed(tiny.Windows):
        def _windows(self):
            yield from windows

    _, draft, _ = tiny.train(folder, monkeypatch, tokens=tokens, datamodule=Fixed(), **changes)
    return torch.cat([p.detach().flatten() for p in draft.parameters()])


def test_micro_batches_equal_one_batch(tiny, tmp_path, monkeypatch) -> None:
    """A step divides by the tokens of the whole window: each counts the same beside any other."""
    objective = Objective(weighting="entropy", entropy_slope=1.0)
    rows = [tiny.micro_batch(1, [tiny.marks(1)]), tiny.micro_batch(2, [tiny.marks(3)])]
    both = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    scales = []

    def recorded(parameters, scale, max_norm):
        scales.append(scale)
        return scale_and_clip(parameters, scale, max_norm)

    monkeypatch.setattr(module, "scale_and_clip", recorded)
    cut, whole = (
        step(tiny, tmp_path / name, monkeypatch, windows, 4, objective=objective)
        for name, windows in (("cut", [rows]), ("whole", [[both]]))
    )
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-5)
    assert scales == [0.25, 0.25]


def test_mismatch_by_hand() -> None:
    """W h = (2, 0) against t = (2, 1): 1/5. W h = 0: 1. W h = t: 0."""
    hidden = torch.tensor([[1.0], [0.0], [1.0]])
    projection = torch.tensor([[2.0], [0.0]])
    target = torch.tensor([[2.0, 1.0], [3.0, 4.0], [2.0, 0.0]])
    torch.testing.assert_close(mismatch(hidden, projection, target), torch.tensor([0.2, 1.0, 0.0]))


class Killed:
    """A teacher that sends SIGTERM to this process at its `calls`-th question."""

    def __init__(self, teacher, calls: int):
        self._teacher, self._calls, self.width = teacher, calls, teacher.width

    def to(self, device):
        self._teacher.to(device)

    def signal(self, batch, positions):
        self._calls -= 1
        if self._calls == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._teacher.signal(batch, positions)


def test_a_stopped_run_goes_on_bit_for_bit(tiny, tmp_path, monkeypatch) -> None:
    def train(name, **more):
        objective = Objective(weighting="entropy")
        return tiny.train(tmp_path / name, monkeypatch, objective=objective, **more)[0]

    whole = train("whole")
    teacher = Killed(tiny.LiveTeacher(tiny.llama(32, seed=0)), calls=13)
    with pytest.raises(SystemExit):
        train("parts", teacher=teacher)
    torch.manual_seed(99)
    parts = train("parts")
    for one, two in zip(whole["candidates"], parts["candidates"], strict=True):
        first, second = (torch.load(Path(path) / "weights.pt") for path in (one, two))
        assert all(torch.equal(first[name], second[name]) for name in first)


# Inductor's own import of a deprecated decorator.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.slow
def test_a_compiled_draft_trains_the_same(tiny, tmp_path, monkeypatch) -> None:
    def train(name, compiled):
        config = TrainerConfig(
            accelerator="cpu", precision="32-true", checkpoints=1, compile=compiled
        )
        _, draft, _ = tiny.train(tmp_path / name, monkeypatch, trainer=config)
        return torch.cat([p.detach().flatten() for p in draft.parameters()])

    torch.testing.assert_close(train("eager", False), train("compiled", True), rtol=0, atol=2e-4)
