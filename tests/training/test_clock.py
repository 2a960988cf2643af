import pytest

from distill.training.clock import Clock
from distill.training.config import BudgetConfig


def test_progress_is_the_budget_that_is_further_spent() -> None:
    clock = Clock(BudgetConfig(tokens=1000, minutes=1.0))
    clock.advance(tokens=250, seconds=12.0)
    assert clock.progress == pytest.approx(0.25)
    clock.advance(tokens=50, seconds=36.0)
    assert clock.progress == pytest.approx(0.8)
    assert not clock.finished
    clock.advance(tokens=700, seconds=0.0)
    assert clock.finished


def test_a_window_without_tokens_is_read_but_is_no_step() -> None:
    clock = Clock(BudgetConfig(tokens=10))
    clock.advance(tokens=0, seconds=1.0)
    clock.advance(tokens=4, seconds=1.0)
    assert (clock.spent.windows, clock.spent.steps) == (2, 1)


def test_pauses_count_towards_the_budget_but_not_the_rate(monkeypatch) -> None:
    now = iter([0.0, 0.0, 3.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    clock = Clock(BudgetConfig(tokens=100))
    with clock.pause():
        pass
    clock.advance(tokens=70, seconds=10.0)
    assert clock.spent.seconds == 10.0
    assert clock.tokens_per_second == pytest.approx(10.0)


def test_state_goes_on() -> None:
    clock, other = Clock(BudgetConfig(tokens=10)), Clock(BudgetConfig(tokens=10))
    clock.advance(tokens=7, seconds=2.0)
    other.load_state_dict(clock.state_dict())
    assert other.spent == clock.spent
