"""Choosing played again: shares of passes by hand, and the same champion from less decoding."""

from collections import Counter

import pytest
from distill.evaluate.selection import Way, choices

from distill.evaluate.records import PLAIN
from distill.evaluate.statistics import Bootstrap

from .conftest import make_measurement

BOOTSTRAP = Bootstrap(200)
ALPHAS = {"poor": 0.2, "fair": 0.72, "good": 0.8}


def test_shares_and_speed_kept_by_hand() -> None:
    rows = []
    for n in range(6):
        rows += [
            make_measurement(f"p{n}", passes=60, seconds=6.0),
            make_measurement(f"p{n}", "slow", 1, passes=40, seconds=4.0),
            make_measurement(f"p{n}", "fast", 1, passes=20, seconds=3.0),
        ]
    only_slow, both = (
        Way("slow", ["slow"], False, screening=0.25),
        Way("both", ["slow", "fast"], False),
    )
    slow, all_of_it = choices(rows, [only_slow, both], {}, BOOTSTRAP, orders=4, seed=0)
    # 60 + 40 of 60 + 40 + 20 passes and the screening; 3 s a prompt would have done, not 4.
    assert (
        slow.passes_share == slow.passes_low == slow.passes_high == pytest.approx(100 / 120 + 0.25)
    )
    assert (slow.same, slow.kept, slow.decoded) == (0.0, pytest.approx(0.75), 1)
    assert (all_of_it.passes_share, all_of_it.same, all_of_it.kept) == (1.0, 1.0, 1.0)


def test_racing_spends_less_and_orders_differ(simulated) -> None:
    rows = {}
    for seed, (name, alpha) in enumerate(ALPHAS.items()):
        for row in simulated(40, 3, alpha, 0.05, seed=seed, candidate=name):
            rows.setdefault((row.arm, row.unit), row)
    full = list(rows.values())
    assert Counter(row.candidate for row in full)[PLAIN] == 40
    (raced,) = choices(full, [Way("raced", list(ALPHAS), True)], {}, BOOTSTRAP, orders=6, seed=1)
    assert raced.same == 1.0
    assert raced.passes_low <= raced.passes_share <= raced.passes_high < 1.0
    again = choices(full, [Way("raced", list(ALPHAS), True)], {}, BOOTSTRAP, orders=6, seed=1)
    assert again == [raced]
    close = [Way("raced", ["fair", "good"], True)]  # some orders tell the two apart sooner
    (raced,) = choices(full, close, {}, BOOTSTRAP, orders=6, seed=1)
    assert raced.passes_low < raced.passes_high


def test_held_out_alpha_decides_between_equals_alike_in_every_way(simulated) -> None:
    rows = {}
    for seed, name in enumerate(("early", "late")):  # the same draft twice, but for luck
        for row in simulated(30, 3, 0.6, 0.05, seed=seed, candidate=name):
            rows.setdefault((row.arm, row.unit), row)
    ways = [Way("raced", ["early", "late"], True), Way("late", ["late"], False)]
    later = {"early": 0.4, "late": 0.5}
    for found in choices(list(rows.values()), ways, later, BOOTSTRAP, orders=6, seed=0):
        assert found.same == 1.0
    (way,) = choices(list(rows.values()), ways[1:], {"early": 0.5, "late": 0.4}, BOOTSTRAP, 6, 0)
    assert way.same == 0.0
