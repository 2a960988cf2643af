"""The minutes of a job's stages and the choice among sizes, by hand; a training that is timed."""

import math
from dataclasses import replace

import pytest

from distill.evaluate.benchmark.stage_times import (
    WARM_UP,
    Rates,
    Watched,
    Work,
    choose_size,
    expected_minutes,
)

RATES = Rates(answered=100.0, read=400.0, learnt=500.0, step_seconds={1: 0.05, 4: 0.1})
WORK = Work(
    prompts=24_000,  # 60 s
    answers=12_000,  # 120 s
    kept=240_000,  # 600 s
    start=24_000,  # 60 s
    learnt=150_000,  # 300 s
    validated=90_000,  # 30,000 forward and backward: 60 s
    decoded_prompts=24_000,  # 60 s
    steps={1: 1200, 4: 600},  # 60 s and 60 s
)


def test_minutes_by_hand():
    assert expected_minutes(WORK, RATES) == pytest.approx(
        {"generate": 3.0, "cache": 10.0, "train": 7.0, "measure": 3.0}
    )


def test_a_stage_with_nothing_to_do_is_not_named():
    found = expected_minutes(replace(WORK, prompts=0, answers=0, kept=0), RATES)
    assert list(found) == ["train", "measure"]


def test_a_budget_of_minutes_bounds_the_training():
    """60 s of start, and two minutes that end it, whatever its tokens."""
    for learnt in (WORK.learnt, math.inf):
        found = expected_minutes(replace(WORK, learnt=learnt, minutes=2.0), RATES)
        assert found["train"] == pytest.approx(3.0)


SIZES = {
    "small": {"generate": 1.0, "train": 9.0},
    "medium": {"generate": 2.0, "train": 18.0},
    "large": {"generate": 4.0, "train": 36.0},
}


@pytest.mark.parametrize(
    ("limit", "size"),
    [(5, "small"), (10, "small"), (19.9, "small"), (20, "medium"), (39, "medium"), (40, "large")],
)
def test_the_largest_size_that_ends_in_time_is_taken(limit, size):
    assert choose_size(SIZES, limit) == size


def test_windows_count_from_the_end_of_the_warm_up(tmp_path):
    """The first two take 50 s; 300 tokens were begun in the 6 s from the third to the last."""
    data = Watched(tmp_path, tokens_per_batch=1, tokens_per_step=1)
    assert WARM_UP == 2
    data.begun = [(0.0, 90), (40.0, 90), (50.0, 100), (52.0, 200), (56.0, 90)]
    assert data.learnt_per_second == pytest.approx(50.0)
