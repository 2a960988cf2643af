"""What a log shows of a long loop, and the time that is left of it, by a clock of its own."""

import itertools
import logging
import random

import pytest

from distill.progress import MARKS, Pace, Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves: `clock.now += seconds`."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr("time.monotonic", lambda: Clock.now)
    return Clock


def seconds(text: str) -> int:
    hours, minutes, rest = text.split(":")
    return 3600 * int(hours) + 60 * int(minutes) + int(rest)


def test_a_log_counts_up_and_says_the_end_once(caplog, clock):
    with caplog.at_level(logging.INFO), Progress("answering", 3) as progress:
        for _ in range(3):
            clock.now += 20
            progress.advance(1)
    assert caplog.messages == [
        "answering: 1/3, ? left",
        "answering: 2/3, 0:00:20 left",
        "answering: 3/3",
    ]


def test_what_the_first_item_waits_for_is_said_before_it(caplog, clock):
    with caplog.at_level(logging.INFO):
        with Progress("caching", 2, first="compiling the target") as progress:
            progress.advance(2, tokens=10)
        with Progress("caching", 0, first="compiling the target"):
            pass  # there is no first item to wait for
    assert caplog.messages == [
        "caching: 0/2: compiling the target",
        "caching: 2/2, 10000000000 tokens/s",
        "caching: 0/0",
    ]


def test_the_time_left_leaves_out_what_came_before_the_first_mark(clock):
    """100 seconds of compiling end with the first item; ten more take 4 seconds each."""
    pace = Pace()
    assert pace.left(1) == "?"
    clock.now += 100
    pace.mark(1)
    assert pace.left(99) == "?"
    for done in range(2, 12):
        clock.now += 4
        pace.mark(done)
    assert pace.left(89) == "0:05:56"
    assert pace.left(0) == "0:00:00"


def test_the_time_left_follows_a_pace_that_changes(clock):
    """50 items of 1 s, then 100 of 3 s: the later half of the 350 seconds knows the new pace."""
    pace = Pace()
    for done, each in enumerate([0] + 50 * [1] + 100 * [3]):
        clock.now += each
        pace.mark(done)
    assert pace.left(100) == "0:05:00"


def test_work_that_stands_still_has_no_pace(clock):
    pace = Pace()
    for _ in range(3):
        clock.now += 5
        pace.mark(7)
    assert pace.left(1) == "?"


def test_a_long_loop_keeps_few_marks(clock):
    pace = Pace()
    for done in range(20_000):
        clock.now += 0.1
        pace.mark(done)
    assert len(pace._marks) <= MARKS


WARM_UPS = ([0], [60], [40, 30], [200, 20, 5])
"""Seconds that the first items take longer."""


@pytest.mark.parametrize(("items", "warm_up"), list(itertools.product((100, 1000), WARM_UPS)))
@pytest.mark.parametrize("seed", range(20))
def test_from_a_tenth_of_the_work_on_the_time_left_holds_within_30_percent(
    clock, items, warm_up, seed
):
    """A constant speed with noise of ±25% an item, behind items that wait for a compiler.

    A warm-up of several items is behind once as much time again has passed as it took.
    """
    draw = random.Random(seed)
    took = [4 * draw.uniform(0.75, 1.25) for _ in range(items)]
    slow = sum(warm_up[1:])
    pace = Pace()
    for done, each in enumerate(took, start=1):
        clock.now += each + (warm_up[done - 1] if done <= len(warm_up) else 0)
        pace.mark(done)
        rest = sum(took[done:])
        if done > max(items // 10, len(warm_up) + slow / 4 + 3) and rest > 20:
            assert seconds(pace.left(items - done)) == pytest.approx(rest, rel=0.3)


def test_warm_says_where_loading_ends(caplog, clock):
    with caplog.at_level(logging.INFO), Progress("evaluating", 4) as progress:
        clock.now += 300
        progress.warm()
        clock.now += 20
        progress.advance(1)
    assert caplog.messages[0] == "evaluating: 1/4, 0:01:00 left"


def test_work_of_others_counts_too(caplog, clock):
    with caplog.at_level(logging.INFO), Progress("answering", 10) as progress:
        progress.reach(2)
        clock.now += 20
        progress.reach(6)
    assert caplog.messages[0] == "answering: 6/10, 0:00:20 left"


def test_a_loop_of_unknown_length_says_how_far_it_came(caplog):
    with caplog.at_level(logging.INFO), Progress("asking") as progress:
        list(progress.each("ab"))
    assert caplog.messages == ["asking: 2"]


def test_a_loop_that_broke_says_no_end(caplog):
    try:
        with caplog.at_level(logging.INFO), Progress("answering", 3):
            raise KeyError
    except KeyError:
        pass
    assert caplog.messages == []
