"""What is told before the first step, and the time that is left."""

import re
from types import SimpleNamespace

import pytest

from distill.training.callbacks import progress
from distill.training.callbacks.progress import FIRST_STEP, LOADING, BudgetProgress


def test_loading_and_the_first_step_are_told_before_they_are_done(
    tiny, tmp_path, monkeypatch, caplog
) -> None:
    order = []

    class Teacher(tiny.LiveTeacher):
        def signal(self, batch, positions):
            order.append("teacher")
            return super().signal(batch, positions)

    monkeypatch.setattr(progress.log, "info", lambda text, *values: order.append(text % values))
    tiny.train(tmp_path, monkeypatch, tokens=20, teacher=Teacher(tiny.llama(32, seed=0)))
    assert order[:3] == [f"train   0%, {LOADING}", f"train   0%, {FIRST_STEP}", "teacher"]
    assert re.fullmatch(r"train 100%, 0:00:00 left, 27 tokens, \d+ tokens/s.*", order[-1])


def test_time_left_holds_within_30_percent_behind_a_first_step_that_compiles(
    monkeypatch,
) -> None:
    """Steps of 4 seconds, the first of which waits 100 for a compiler; every tenth validates."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    callback, trainer = BudgetProgress(), SimpleNamespace(callback_metrics={})
    spent = SimpleNamespace(tokens=1)
    callback._live = True  # says every step
    said = []
    monkeypatch.setattr(callback._bar, "update", lambda *_, note, **__: said.append(note))
    steps = [4.0 + 6.0 * (step % 10 == 0) for step in range(1, 101)]
    for step, took in enumerate(steps, start=1):
        now[0] += took + 100 * (step == 1)
        clock = SimpleNamespace(
            progress=step / 100, spent=spent, tokens_per_second=1.0, finished=False
        )
        callback.after_window(trainer, SimpleNamespace(clock=clock))  # type: ignore[arg-type]
        rest = sum(steps[step:])
        if 10 <= step < 90:
            hours, minutes, seconds = map(int, said[-1].split(" left")[0].split(":"))
            assert 3600 * hours + 60 * minutes + seconds == pytest.approx(rest, rel=0.3)
    assert said[0].startswith("? left")
