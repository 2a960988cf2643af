"""Costs from measured step times, worked by hand."""

import math

import pytest

from distill.speculative.prediction import Cost
from distill.speculative.stats import Timing


def timing(draft: float, draft_steps: int, verify: float, verify_steps: int) -> Timing:
    return Timing(
        draft_seconds=draft,
        draft_steps=draft_steps,
        verify_seconds=verify,
        verify_steps=verify_steps,
    )


def test_costs_are_in_steps_of_plain_decoding_pooled_by_sums():
    """A plain step takes 12 s / 6; drafts took 4 s / 8 and verifying 9 s / 3, not the mean of 2."""
    plain = [timing(0, 0, 2, 1), timing(0, 0, 10, 5)]
    drafted = [timing(1, 2, 4, 1), timing(3, 6, 5, 2)]
    assert Cost.measured(plain, drafted) == Cost(c=pytest.approx(0.25), v=pytest.approx(1.5))


def test_without_drafts_there_is_no_c():
    cost = Cost.measured([timing(0, 0, 2, 2)], [timing(0, 0, 3, 2)])
    assert math.isnan(cost.c)
    assert cost.v == 1.5
