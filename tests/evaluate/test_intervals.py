"""Intervals by hand and by simulation; their error rates are in test_error_rates.py."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from distill.errors import UserError
from distill.evaluate.intervals import (
    LINEAR,
    LOG,
    LOGIT,
    TAIL,
    Array,
    Interval,
    critical_value,
    difference,
    freedom,
    interval,
    intervals,
    jackknife,
    more_units,
    ratio,
    sidak,
    times_as_fast,
)


def measured(units: int, arms: int, *, seed: int = 0, spread: float = 0.1) -> Array:
    """Sums [U, 2 + 2·A] of arms that decode as fast as plain decoding."""
    generator = np.random.default_rng(seed)
    columns = np.exp(spread * generator.standard_normal((units, 2 + 2 * arms)))
    columns[:, 1::2] = 64
    return columns


def test_the_mean_of_equal_units_has_students_interval() -> None:
    found = interval(np.array([[1.0, 1], [2, 1], [3, 1], [6, 1]]), ratio, LINEAR)
    # mean 3, deviations −2, −1, 0, 3: variance 14/3, standard error √(14/12)
    error = np.sqrt(14 / 12)
    half = stats.t.isf(TAIL, 3) * error
    assert (found.value, found.error) == pytest.approx((3, error))
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))


def test_pooled_is_a_ratio_of_sums() -> None:
    assert interval(np.array([[1.0, 2], [9, 10]])).value == pytest.approx(10 / 12)


def test_a_speedup_and_its_inverse_have_inverse_bounds() -> None:
    columns = measured(9, 1)
    faster, slower = (interval(c, times_as_fast) for c in (columns, columns[:, [2, 3, 0, 1]]))
    assert (faster.low, faster.high) == pytest.approx((1 / slower.high, 1 / slower.low))


def test_what_arms_share_takes_no_part() -> None:
    hardness = np.random.default_rng(0).lognormal(0, 1.0, size=40)
    columns = np.stack([1.5 * hardness, np.ones(40), hardness, np.ones(40)], axis=1)
    found = interval(columns, times_as_fast)
    assert (found.low, found.high, found.error) == pytest.approx((1.5, 1.5, 0))


def test_a_difference_by_hand() -> None:
    columns = np.array([[10.0, 5, 6, 6], [20, 10, 9, 9]])  # 30/15 − 15/15
    assert interval(columns, difference, LINEAR).value == pytest.approx(1.0)


def test_bounds_of_a_share_stay_between_0_and_1() -> None:
    found = interval(np.array([[99.0, 100], [97, 100], [60, 100]]), ratio, LOGIT)
    assert 0 < found.low < found.value == pytest.approx(256 / 300)
    assert found.value < found.high < 1


def test_a_draft_that_is_the_target_has_alpha_1_without_doubt() -> None:
    found = interval(np.array([[7.0, 7], [5, 5]]), ratio, LOGIT)
    assert (found.low, found.value, found.high) == (1, 1, 1)


@pytest.mark.filterwarnings("error")
def test_too_little_to_tell_is_nan_and_nothing_is_refused() -> None:
    alone, empty = interval(np.array([[3.0, 2]])), interval(np.zeros((3, 2)))
    assert alone.value == 1.5
    assert np.isnan([alone.low, alone.high, empty.value, empty.low]).all()
    assert not alone.low > 1
    assert not alone.high <= 1
    with pytest.raises(UserError, match="at least one prompt"):
        interval(np.zeros((0, 2)))


def test_freedom_is_units_less_one_and_less_where_few_units_have_most_tokens() -> None:
    assert freedom(np.full(8, 1 / 8)) == pytest.approx(7)
    assert freedom(np.array([0.4, 0.4, 0.1, 0.05, 0.05])) < 2.5
    stacked = freedom(np.array([[0.25] * 4, [0.4, 0.3, 0.2, 0.1]]))
    assert stacked[0] == pytest.approx(3)
    assert stacked[1] < 3


def test_one_arm_needs_no_correction_and_copies_of_it_little() -> None:
    columns = measured(12, 1)
    alone = interval(columns, times_as_fast)
    assert intervals(columns) == [alone]
    copies = np.concatenate([columns, columns[:, 2:], columns[:, 2:]], axis=1)
    assert intervals(copies)[0].low == pytest.approx(alone.low, rel=0.02)


def test_independent_arms_need_nearly_sidaks_correction() -> None:
    columns = np.random.default_rng(0).normal(size=(100, 16))
    columns[:, 1::2] = 1
    found = jackknife(columns, ratio)
    assert critical_value(found) == pytest.approx(stats.t.isf(sidak(8), 99), rel=0.02)


def test_more_arms_than_units_have_a_critical_value_too() -> None:
    wide = critical_value(jackknife(measured(5, 12), times_as_fast, LOG))
    assert stats.t.isf(TAIL, 4) < wide < 1.1 * stats.t.isf(sidak(12), 4)


def test_the_largest_t_exceeds_its_critical_value_as_often_as_it_says() -> None:
    exceeded = []
    for seed in range(400):
        found = jackknife(measured(16, 4, seed=seed), times_as_fast, LOG)
        exceeded.append((found.values / found.errors).max() > critical_value(found, draws=1000))
    assert 0.01 < np.mean(exceeded) < 0.045


def test_arms_without_spread_take_no_part() -> None:
    columns = measured(8, 2)
    columns[:, 4:] = columns[:, :2]  # the second arm is plain decoding
    noisy, exact = intervals(columns)
    assert noisy == interval(columns[:, :4], times_as_fast)
    assert (exact.low, exact.high) == (1, 1)


def test_floors_widen_upwards_only() -> None:
    columns = measured(5, 1)
    (plain,), (one,), (seven,) = (intervals(columns, floors=floors) for floors in (0, 1, 7))
    assert plain == one
    assert seven.low == plain.low
    assert seven.high > plain.high
    assert 1 - (1 - sidak(7)) ** 7 == pytest.approx(TAIL)


def test_more_units_by_hand() -> None:
    # standard error 0.02 · √16 = 0.08 a unit; effect log 1.03: (1.96 + 0.84)² · 0.08² / log(1.03)²
    # is 58 units with normal quantiles, two more with Student's
    effect, critical = 0.02, stats.t.isf(TAIL, 15)
    low, high = 1.03 * np.exp([-critical * effect, critical * effect])
    assert more_units(Interval(1.03, low, high, effect), 16, 1.0) == 60 - 16


@pytest.mark.parametrize("margin", [1.1, 1.2])
def test_no_number_of_units_shows_an_effect_that_is_not_there(margin: float) -> None:
    assert more_units(Interval(1.1, 1.0, 1.21, 0.04), 12, margin) is None


def test_no_unit_more_is_needed_where_the_bound_is_above() -> None:
    assert more_units(Interval(1.1, 1.05, 1.15, 0.02), 12, 1.0) == 0
    assert more_units(Interval(1.1, 1.05, 1.15, 0.02), 3, 1.0) == 2  # but five at least


def test_a_single_unit_asks_for_the_fewest() -> None:
    assert more_units(interval(np.array([[3.0, 2, 1, 2]]), times_as_fast), 1, 1.0) == 4


def test_a_larger_effect_needs_fewer_units() -> None:
    needed = [more_units(Interval(v, 0.95, v**2 / 0.95, 0.05), 12, 1.0) for v in (1.02, 1.05, 1.1)]
    assert all(a is not None and b is not None and a > b for a, b in pairwise(needed))


def test_a_minute_effect_needs_very_many_units() -> None:
    needed = more_units(Interval(1 + 1e-14, 0.9, 1.1, 0.05), 12, 1.0)
    assert needed is not None
    assert needed > 10**20


def test_the_units_asked_for_are_enough_in_four_of_five() -> None:
    spread, effect, units = 0.1, 0.06, 10
    half = stats.t.isf(TAIL, units - 1) * spread / np.sqrt(units)
    value, low, high = np.exp([effect, effect - half, effect + half])
    given = Interval(value, low, high, spread / np.sqrt(units))
    asked = more_units(given, units, 1.0)
    assert asked is not None
    whole = units + asked
    samples = np.random.default_rng(0).normal(effect, spread, size=(4000, whole))
    low = samples.mean(1) - stats.t.isf(TAIL, whole - 1) * samples.std(1, ddof=1) / np.sqrt(whole)
    assert np.mean(low > 0) == pytest.approx(0.8, abs=0.04)
