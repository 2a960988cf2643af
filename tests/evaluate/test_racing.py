"""Racing keeps the winner, drops what cannot win, and decides from the rows alone."""

from itertools import pairwise

import pytest
from distill.evaluate.decoding import round_ends
from distill.evaluate.racing import FIRST_ROUND, passes, race

from distill.evaluate.records import PLAIN, PLAIN_ARM, Arm
from distill.evaluate.screening import choose
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.table import fastest, tabulate

BOOTSTRAP = Bootstrap(300)
ALPHAS = {"good": 0.8, "fair": 0.7, "poor": 0.3, "bad": 0.1}
ARMS = [Arm(name, 3) for name in ALPHAS]


def gather(simulated, alphas, ks=(3,), prompts=60):
    """All arms over all prompts; the plain rows are the first arm's."""
    rows = {}
    for seed, (name, alpha) in enumerate(alphas.items()):
        for k in ks:
            for row in simulated(prompts, k, alpha, 0.05, seed=8 * seed + k, candidate=name):
                rows.setdefault((row.arm, row.unit), row)
    return list(rows.values())


def run_race(full, arms):
    """What `measure` does, over rows that are there already: the rows, and who is left."""
    entrants, rows = race(arms, BOOTSTRAP), []
    units = sorted({row.unit for row in full})
    for start, stop in pairwise(round_ends(len(units), FIRST_ROUND)):
        still = {PLAIN_ARM, *entrants(rows)}
        rows += [row for row in full if row.unit in units[start:stop] and row.arm in still]
    return rows, entrants(rows)


def share(rows, arms) -> float:
    spent, whole = passes(rows, arms)
    return spent / whole


@pytest.fixture
def full(simulated):
    return gather(simulated, ALPHAS)


def test_same_champion_for_fewer_passes(full) -> None:
    rows, left = run_race(full, ARMS)
    assert fastest(tabulate(rows, BOOTSTRAP)).arm == fastest(tabulate(full, BOOTSTRAP)).arm
    assert Arm("good", 3) in left
    assert {Arm("poor", 3), Arm("bad", 3)}.isdisjoint(left)
    assert share(rows, ARMS) < 0.75
    assert share(full, ARMS) == pytest.approx(1.0)


def test_a_screened_race_of_eight_checkpoints_costs_a_third_and_names_the_same(simulated) -> None:
    # one training's checkpoints, each better than the last, and the ks that are usual
    alphas = {
        f"tokens-{i}": a for i, a in enumerate((0.2, 0.3, 0.38, 0.44, 0.49, 0.53, 0.56, 0.58))
    }
    arms = [Arm(name, k) for name in alphas for k in (1, 2, 3, 4)]
    full = gather(simulated, alphas, (1, 2, 3, 4), prompts=48)
    best = fastest(tabulate(full, BOOTSTRAP)).arm

    raced, left = run_race(full, arms)
    assert fastest(tabulate(raced, BOOTSTRAP)).arm == best
    assert share(raced, arms) <= 1 / 3

    chosen = set(choose(alphas, list(alphas), 3))
    screened, _ = run_race(
        [row for row in full if row.candidate in {PLAIN, *chosen}],
        [arm for arm in arms if arm.candidate in chosen],
    )
    assert fastest(tabulate(screened, BOOTSTRAP)).arm == best
    assert share(screened, arms) < share(raced, arms)
    assert len(left) < len(arms) / 2


def test_passes_by_hand(measurement) -> None:
    # plain 60 + 60 over two units; b left after 20, so 40 over both; c was screened out: it is
    # taken to cost what a (50 over two units) and b cost on average
    rows = [
        measurement("p0"), measurement("p1"),
        measurement("p0", "a", 2, passes=20), measurement("p1", "a", 2, passes=30),
        measurement("p0", "b", 2, passes=20),
    ]  # fmt: skip
    assert passes(rows, [Arm("b", 2), Arm("c", 2)]) == (190, 120 + 40 + (50 + 40) / 2)


def test_who_left_the_race_is_no_fastest(simulated) -> None:
    rows = gather(simulated, {"steady": 0.6, "lucky": 0.9}, prompts=20)
    early = [row for row in rows if row.candidate != "lucky" or row.unit < "p005"]
    assert fastest(tabulate(early, BOOTSTRAP)).candidate == "steady"


def test_everybody_starts(full) -> None:
    assert race(ARMS, BOOTSTRAP)([]) == ARMS


def test_who_left_stays_out_after_a_resume(full) -> None:
    rows, left = run_race(full, ARMS)
    assert race(ARMS, BOOTSTRAP)(rows[::-1]) == left


def test_two_that_cannot_be_told_apart_both_go_on(simulated) -> None:
    twins = [Arm("one", 3), Arm("two", 3)]
    assert race(twins, BOOTSTRAP)(gather(simulated, {"one": 0.7, "two": 0.7}, prompts=20)) == twins


@pytest.mark.parametrize(
    ("count", "first", "ends"),
    [(7, None, [0, 7]), (40, 5, [0, 5, 10, 20, 40]), (12, 5, [0, 5, 10, 12]), (3, 5, [0, 3])],
)
def test_rounds_double(count, first, ends) -> None:
    assert round_ends(count, first) == ends
