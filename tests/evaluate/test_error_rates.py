"""The verdict's error rate, simulated with a fixed seed: red with percentile bootstraps."""

import numpy as np
import pytest

from distill.evaluate.benchmark import error_rates as benchmark
from distill.evaluate.benchmark.error_rates import (
    BOOTSTRAP,
    SETTINGS,
    STUDENT,
    Rates,
    Setting,
    Share,
    error_rates,
    markdown,
    with_heavy_tails,
)
from distill.evaluate.intervals import intervals

METHOD = STUDENT
FALSE, COVERED = 0.04, 0.93
BY_NAME = {setting.name: setting for setting in SETTINGS}
ONE_ARM = [BY_NAME[f"1 arm, {units} units"] for units in (5, 12, 24)]
TWELVE_ARMS = BY_NAME["3 drafts × 4 k, 16 units"]
TIE_BREAK = BY_NAME["3 drafts × 4 k, 16 units, held-out tie-break"]
FLOORS = BY_NAME["7 domain floors, 5 units each"]


def rates(setting: Setting, trials: int, method: str = METHOD) -> Rates:
    (found,) = error_rates([setting], [method], trials)
    return found


@pytest.mark.parametrize("setting", [*ONE_ARM, *with_heavy_tails(ONE_ARM)], ids=lambda s: s.name)
def test_one_arm(setting: Setting) -> None:
    found = rates(setting, trials=3000)
    assert found.false_ships.mean <= FALSE
    assert found.false_refusals.mean <= FALSE
    assert found.coverage.mean >= COVERED


@pytest.mark.parametrize("setting", [TWELVE_ARMS, TIE_BREAK], ids=lambda s: s.name)
def test_the_champion_of_twelve_arms(setting: Setting) -> None:
    found = rates(setting, trials=250)
    assert found.false_ships.mean <= FALSE
    assert found.coverage.mean >= COVERED
    assert found.power.mean >= 0.97


def test_seven_floors() -> None:
    found = rates(FLOORS, trials=2000)
    assert found.false_ships.mean <= FALSE
    assert found.false_refusals.mean <= FALSE
    assert found.coverage.mean >= COVERED


def test_percentile_bootstraps_would_fail_all_of_these() -> None:
    assert rates(ONE_ARM[0], 400, BOOTSTRAP).coverage.mean < 0.85
    assert rates(TWELVE_ARMS, 200, BOOTSTRAP).false_ships.mean > 0.12
    assert rates(FLOORS, 200, BOOTSTRAP).false_refusals.mean > 0.3


def test_the_same_seed_gives_the_same_rates() -> None:
    assert rates(TWELVE_ARMS, 3) == rates(TWELVE_ARMS, 3)


def test_the_table_is_in_percent_with_its_errors() -> None:
    share = Share(0.0256, 0.0041)
    found = Rates(ONE_ARM[0], STUDENT, *[share] * 5)
    assert markdown([found]).splitlines()[-1] == (
        "| 1 arm, 5 units | t, simultaneous | " + " | ".join(["2.6 ± 0.4"] * 5) + " |"
    )


@pytest.mark.parametrize(("setting", "rel"), [(FLOORS, 1e-9), (TWELVE_ARMS, 0.01)])
def test_simulated_are_the_intervals_of_the_product(setting: Setting, rel: float) -> None:
    columns = benchmark._simulate(setting, 1.1, 2, np.random.default_rng(0))
    values, low, high, _ = benchmark._student(columns, setting.domains)
    for trial in range(2):
        found = intervals(columns[trial], floors=setting.domains)
        assert [one.value for one in found] == pytest.approx(np.exp(values[trial]))
        assert [one.low for one in found] == pytest.approx(np.exp(low[trial]), rel=rel)
        assert [one.high for one in found] == pytest.approx(np.exp(high[trial]), rel=rel)
