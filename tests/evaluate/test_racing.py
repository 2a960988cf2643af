"""Racing keeps the winner, drops what cannot win, and decides from the rows alone."""

import pytest

from distill.evaluate.racing import race, share_of_passes
from distill.evaluate.records import PLAIN, Arm
from distill.evaluate.select import champion, tabulate
from distill.evaluate.statistics import Bootstrap

BOOTSTRAP = Bootstrap(300)
ALPHAS = {"good": 0.8, "fair": 0.7, "poor": 0.3, "bad": 0.1}
ARMS = [Arm(name, 3) for name in ALPHAS]


@pytest.fixture
def full(simulated):
    """All arms over 60 prompts; the plain rows are the first arm's."""
    rows = {}
    for seed, (name, alpha) in enumerate(ALPHAS.items()):
        for row in simulated(60, 3, alpha, 0.05, seed=seed, candidate=name):
            rows.setdefault((row.candidate, row.unit), row)
    return list(rows.values())


def run_race(full):
    """What `measure` does, over rows that are there already."""
    entrants, rows = race(ARMS, BOOTSTRAP), []
    for unit in sorted({row.unit for row in full}):
        names = {PLAIN, *(arm.candidate for arm in entrants(rows))}
        rows += [row for row in full if row.unit == unit and row.candidate in names]
    return rows, entrants(rows)


def test_same_champion_for_fewer_passes(full) -> None:
    rows, left = run_race(full)
    assert champion(tabulate(rows, BOOTSTRAP)).arm == champion(tabulate(full, BOOTSTRAP)).arm
    assert Arm("good", 3) in left
    assert {Arm("poor", 3), Arm("bad", 3)}.isdisjoint(left)
    assert share_of_passes(rows, ARMS) < 0.75
    assert share_of_passes(full, ARMS) == pytest.approx(1.0)


def test_nobody_leaves_before_there_is_evidence(full) -> None:
    few = [row for row in full if row.unit < "p004"]
    assert race(ARMS, BOOTSTRAP)(few) == ARMS
    assert race(ARMS, BOOTSTRAP)([]) == ARMS


def test_who_left_stays_out_after_a_resume(full) -> None:
    rows, left = run_race(full)
    assert race(ARMS, BOOTSTRAP)(rows[::-1]) == left


def test_two_that_cannot_be_told_apart_both_go_on(simulated) -> None:
    twins = [Arm("one", 3), Arm("two", 3)]
    rows = {}
    for seed, arm in enumerate(twins):
        for row in simulated(20, 3, 0.7, 0.05, seed=seed, candidate=arm.candidate):
            rows.setdefault((row.candidate, row.unit), row)
    assert race(twins, BOOTSTRAP)(list(rows.values())) == twins
