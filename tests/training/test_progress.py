"""What is told before the first step, and the time that is left."""

import re

from distill.training.callbacks import progress
from distill.training.callbacks.progress import FIRST_STEP, LOADING, _Pace


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


def test_time_left_is_counted_from_the_end_of_the_first_step(monkeypatch) -> None:
    """Ten per cent took 100 seconds of compiling, the next ten 4: 80 per cent are left at that."""
    now = iter([100.0, 104.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    pace = _Pace()
    assert pace.left(0.0) == "?"
    pace.note(0.1)
    assert pace.left(0.1) == "?"
    pace.note(0.2)
    assert pace.left(0.2) == "0:00:32"
