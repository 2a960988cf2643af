"""Counting rules and pooled ratios."""

import random

import pytest

from distill.speculative.stats import PromptStats, Stats


def test_tested_ends_at_the_first_rejection():
    """AL-COUNT: acceptance mask [1, 0, 1, 1] is 1 accepted, 2 tested."""
    record = PromptStats(0)
    record.add_round(drafted=4, accepted=1, committed=2, alphas=[0.9, 0.3, 0.8, 0.7])
    assert (record.tested, record.accepted, record.committed) == (2, 1, 2)
    assert record.alpha_sum == pytest.approx(1.2)
    assert [p.tested for p in record.per_position] == [1, 1, 0, 0]
    assert [p.accepted for p in record.per_position] == [1, 0, 0, 0]


def test_nothing_counts_behind_the_end_token():
    """AL-COUNT: five accepted with EOS third commits three."""
    record = PromptStats(0)
    record.add_round(drafted=5, accepted=5, committed=3, alphas=[1.0] * 5)
    assert (record.drafted, record.tested, record.accepted, record.committed) == (5, 3, 3, 3)


@pytest.mark.parametrize("k", [2, 4, 8])
def test_alpha_does_not_depend_on_k(k):
    """AL-DEF: independent acceptance .8 gives alpha .8 for every k; accepted/drafted falls."""
    rng = random.Random(0)
    records = [PromptStats(i) for i in range(40)]
    for record in records:
        for _ in range(500):
            accepted = next((n for n in range(k) if rng.random() >= 0.8), k)
            record.add_round(k, accepted, accepted + 1, [0.8] * k)
    stats = Stats(records)
    assert stats.alpha == pytest.approx(0.8)
    assert stats.alpha_empirical == pytest.approx(0.8, abs=0.01)
    assert stats.tokens_per_pass == pytest.approx((1 - 0.8 ** (k + 1)) / 0.2, abs=0.04)
    if k == 4:
        assert stats.tokens_per_pass == pytest.approx(3.36, abs=0.04)
        assert stats.draft_utilisation == pytest.approx(0.59, abs=0.01)
    for position in stats.per_position:
        assert position.accepted / position.tested == pytest.approx(0.8, abs=0.03)


def test_ratios_pool_by_sums():
    """Not the mean of means: 1 of 1 and 1 of 3 make 2 of 4."""
    short, long = PromptStats(0), PromptStats(1)
    short.add_round(1, 1, 2, [1.0])
    for accepted in (1, 0, 0):
        long.add_round(1, accepted, accepted + 1, [accepted])
    assert Stats([short, long]).alpha_empirical == 0.5


def test_nothing_counted_is_not_a_number():
    assert Stats([]).alpha != Stats([]).alpha
