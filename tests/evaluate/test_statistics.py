"""Pooling: hand-worked numbers, coverage of a known truth, nothing counted twice."""

import numpy as np
import pytest

from distill.errors import UserError
from distill.evaluate.statistics import (
    Sums,
    merge_rows,
    paired_difference,
    pooled_ratio,
    times_as_fast,
)


def sums(*triples: tuple[str, float, float]) -> Sums:
    result = Sums()
    for triple in triples:
        result.add(*triple)
    return result


def test_pooled_ratio_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    # 1 of 2 and 9 of 10: 10/12, where the mean of ratios would say 0.7
    assert pooled_ratio(sums(("a", 1, 2), ("b", 9, 10))).value == pytest.approx(10 / 12)


def test_paired_ratio_and_difference_by_hand() -> None:
    plain = sums(("a", 10, 5), ("b", 20, 10))  # 30/15 = 2 s per token
    fast = sums(("a", 6, 6), ("b", 9, 9))  # 15/15 = 1
    assert times_as_fast(plain, [fast])[0].value == pytest.approx(2.0)
    assert paired_difference(plain, fast).value == pytest.approx(1.0)


def test_pairing_removes_what_both_arms_share() -> None:
    generator = np.random.default_rng(0)
    slow, fast = Sums(), Sums()
    for unit, hardness in enumerate(generator.lognormal(0, 1.0, size=40)):
        slow.add(str(unit), 1.5 * hardness, 1)
        fast.add(str(unit), hardness, 1)
    (interval,) = times_as_fast(slow, [fast])
    assert (interval.low, interval.high) == pytest.approx((1.5, 1.5))


def test_repetitions_of_a_unit_are_no_fresh_evidence() -> None:
    once = sums(("a", 1, 2), ("b", 9, 10), ("c", 3, 9))
    thrice = sums(*[(u, n, d) for u, (n, d) in once.by_unit.items()] * 3)
    assert pooled_ratio(thrice).low == pytest.approx(pooled_ratio(once).low)


def test_order_does_not_matter() -> None:
    triples = [(f"p{i}", float(i % 7), 8.0) for i in range(30)]
    assert pooled_ratio(sums(*triples)) == pooled_ratio(sums(*reversed(triples)))


def test_interval_covers_a_known_truth() -> None:
    # prompts with their own length and acceptance, independent: the truth is E[n·a]/E[n] = 0.6
    generator = np.random.default_rng(1)
    trials, units, covered = 300, 60, 0
    for _ in range(trials):
        lengths = generator.integers(10, 100, size=units)
        alphas = generator.beta(6, 4, size=units)
        accepted = generator.binomial(lengths, alphas)
        arm = sums(*[(str(i), accepted[i], lengths[i]) for i in range(units)])
        interval = pooled_ratio(arm)
        covered += interval.low <= 0.6 <= interval.high
    assert 0.90 <= covered / trials <= 0.985


def test_nothing_tested_gives_nan_not_a_number_out_of_nowhere() -> None:
    interval = pooled_ratio(sums(("a", 0, 0), ("b", 0, 0)))
    assert np.isnan([interval.value, interval.low, interval.high]).all()


def test_unequal_prompts_are_refused_in_a_pair() -> None:
    with pytest.raises(UserError, match="'b'"):
        times_as_fast(sums(("a", 1, 1)), [sums(("a", 1, 1), ("b", 1, 1))])


def test_a_duplicate_is_refused_and_ranks_merge_in_any_order() -> None:
    def name(row: tuple[str, int]) -> tuple[str, int]:
        return row

    left, right = [("b", 1), ("a", 0)], [("a", 1)]
    assert merge_rows([left, right], name) == merge_rows([right, left], name)
    with pytest.raises(UserError, match="twice"):
        merge_rows([left, right, [("a", 0)]], name)


def test_no_rows_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="at least one prompt"):
        pooled_ratio(Sums())
