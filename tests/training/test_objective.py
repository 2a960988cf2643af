"""One step of the objective, over micro-batches and over a restart."""

import os
import signal
from pathlib import Path

import pytest
import torch

from distill.errors import UserError
from distill.teacher.codecs import Hidden, Live, Samples, TopKTail
from distill.training import module
from distill.training.config import TrainerConfig
from distill.training.objective import Objective
from distill.training.optim import scale_and_clip


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"temperature": 0.0}, "above 0"),
        ({"chunk_size": 0}, "objective.chunk_size"),
        ({"divergence": "kl"}, "forward_kl"),
        ({"divergence": "jsd", "beta": 1.0}, "0 < beta < 1"),
        ({"divergence": "lk", "eta": -1.0}, "lk eta is -1"),
    ],
)
def test_what_cannot_be_minimised_is_refused_when_it_is_made(change, remedy) -> None:
    with pytest.raises(UserError, match=remedy):
        Objective(**change)


def test_what_a_form_of_the_signal_cannot_give_is_refused() -> None:
    labelled = Objective({"forward_kl": 1.0, "cross_entropy": 0.1})
    for exact in (Live(), Hidden()):
        labelled.check(exact)
    for kept in (TopKTail(), Samples()):
        with pytest.raises(UserError, match="make them equal"):
            Objective(temperature=2.0).check(kept)
    with pytest.raises(UserError, match="signal=hidden"):
        labelled.check(TopKTail())
    with pytest.raises(UserError, match="use forward_kl alone"):
        Objective("jsd").check(Samples())
    Objective("acceptance").check(TopKTail())


def step(tiny, folder, monkeypatch, windows, tokens, **changes):
    class Fixed(tiny.Windows):
        def _windows(self):
            yield from windows

    _, draft, _ = tiny.train(folder, monkeypatch, tokens=tokens, datamodule=Fixed(), **changes)
    return torch.cat([p.detach().flatten() for p in draft.parameters()])


def test_micro_batches_equal_one_batch(tiny, tmp_path, monkeypatch) -> None:
    """A step divides by the tokens of the whole window: each counts the same beside any other."""
    objective = Objective()
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


class Killed:
    """A teacher that sends SIGTERM to this process at its `calls`-th question."""

    def __init__(self, teacher, calls: int):
        self._teacher, self._calls = teacher, calls

    def to(self, device):
        self._teacher.to(device)

    def signal(self, batch, positions):
        self._calls -= 1
        if self._calls == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._teacher.signal(batch, positions)


def test_a_stopped_run_goes_on_bit_for_bit(tiny, tmp_path, monkeypatch) -> None:
    def train(name, **more):
        objective = Objective("jsd")
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
