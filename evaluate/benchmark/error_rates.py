"""How often the verdict is wrong: simulated evaluations of a known true speedup.

Simulated are seconds and tokens of each unit and arm, as an evaluation measures them; the intervals
are made by the product's own functions. Beside them stands the percentile bootstrap, each arm by
itself, which the product used before.

The noise: per unit, the log of plain over draft time has a standard deviation of about 0.12. The
half-widths of the intervals measured here, of 6 to 56 prompts, tell 0.04 to 0.22, 0.12 in most.
Of it the prompts' own acceptance has 0.08, which all arms share, and 0.05 that each draft adds;
the clock has 0.05 for each arm and for plain decoding, which all arms are compared with. Six in ten
answers have 64 tokens, the others end sooner. `heavy_tails` draws 15% of all these with 2.2 times
the standard deviation and the rest with 0.6 times.

Shapes: N trials, U units, A arms, D drafts, K values of k.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from distill.evaluate.intervals import (
    LOG,
    TAIL,
    Array,
    Estimates,
    critical_value,
    jackknife,
    sidak,
    times_as_fast,
)

BOOTSTRAP, STUDENT = "percentile bootstrap", "t, simultaneous"
METHODS = (BOOTSTRAP, STUDENT)
ACCEPTANCE, DRAFT, CLOCK, LENGTH = 0.08, 0.05, 0.05, 0.08
"""Standard deviations of the logs; LENGTH is of a unit's time for a token, whoever decodes."""
MOST_TOKENS = 64
RESAMPLES = 1000
CHUNK = 100
"""Trials whose resamples exist at once."""


@dataclass(frozen=True)
class Setting:
    """drafts × ks arms on `units` units; or, with domains, one arm on `units` in each of them.

    tie_break: among drafts that are not surely slower, held-out rows name one, whatever its speed;
    here it is the last. domains: each has a floor that is the margin.
    """

    name: str
    units: int
    drafts: int = 1
    ks: int = 1
    domains: int = 0
    tie_break: bool = False
    heavy_tails: bool = False


SETTINGS = (
    Setting("1 arm, 5 units", 5),
    Setting("1 arm, 12 units", 12),
    Setting("1 arm, 24 units", 24),
    Setting("3 drafts × 4 k, 16 units", 16, 3, 4),
    Setting("3 drafts × 4 k, 16 units, held-out tie-break", 16, 3, 4, tie_break=True),
    Setting("3 drafts × 4 k, 5 units", 5, 3, 4),
    Setting("7 domain floors, 5 units each", 5, domains=7),
)


@dataclass(frozen=True)
class Share:
    """A simulated mean and its Monte-Carlo standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Rates:
    """What a method does in a setting. Nominal: 0.025, 0.025, 0.95.

    false_ships, false_refusals: shares of *ship* and *do not ship* where every true speedup is the
    margin. coverage: share of champions' intervals that hold the truth. overstatement: by which
    the champion's measured speedup exceeds the true one in the mean. power: share of *ship* where
    every true speedup is 1.15 times the margin.
    """

    setting: Setting
    method: str
    false_ships: Share
    false_refusals: Share
    coverage: Share
    overstatement: Share
    power: Share


def error_rates(
    settings: Sequence[Setting] = SETTINGS,
    methods: Sequence[str] = METHODS,
    trials: int = 2000,
    seed: int = 0,
) -> Iterator[Rates]:
    """For each setting in turn one line a method, of the same simulated evaluations."""
    for setting in settings:
        worthless = _simulate(setting, 1.0, trials, np.random.default_rng([seed, 0]))
        good = _simulate(setting, 1.15, trials, np.random.default_rng([seed, 1]))
        for method in methods:
            null, better = (_judge(columns, setting, method) for columns in (worthless, good))
            yield Rates(
                setting,
                method,
                false_ships=_share(null.ship),
                false_refusals=_share(null.refuse),
                coverage=_share((null.low <= 0) & (null.high >= 0)),
                overstatement=_share(np.expm1(null.value)),
                power=_share(better.ship),
            )


def with_heavy_tails(settings: Sequence[Setting] = SETTINGS) -> list[Setting]:
    return [replace(one, name=f"{one.name}, heavy tails", heavy_tails=True) for one in settings]


def _share(found: Array) -> Share:
    return Share(float(np.mean(found)), float(np.std(found) / np.sqrt(len(found))))


def _simulate(
    setting: Setting, speedup: float, trials: int, generator: np.random.Generator
) -> Array:
    """Sums [N, U, 2 + 2·A] of plain decoding and the arms: seconds and tokens of each.

    All factors have mean 1 and are independent of the tokens, so the ratio of the expected sums,
    which is the truth, is `speedup`.
    """
    units = setting.units * max(setting.domains, 1)
    drafts, ks = setting.drafts, setting.ks

    def noise(deviation: float, *shape: int) -> Array:
        rare, wide, narrow = 0.15, 2.2, 0.6
        sizes = np.ones(shape)
        mean = np.exp(deviation**2 / 2)
        if setting.heavy_tails:
            sizes = np.where(generator.random(shape) < rare, wide, narrow)
            mean = rare * np.exp((wide * deviation) ** 2 / 2)
            mean += (1 - rare) * np.exp((narrow * deviation) ** 2 / 2)
        return np.exp(deviation * sizes * generator.standard_normal(shape)) / mean

    whole = generator.random((trials, units)) < 0.6
    tokens = np.where(whole, MOST_TOKENS, generator.integers(8, MOST_TOKENS + 1, whole.shape))
    work = tokens * noise(LENGTH, trials, units)
    drafted = (
        (work / speedup)[..., None, None]
        * noise(ACCEPTANCE, trials, units, 1, 1)
        * noise(DRAFT, trials, units, drafts, 1)
        * noise(CLOCK, trials, units, drafts, ks)
    ).reshape(trials, units, drafts * ks)
    seconds = np.concatenate([(work * noise(CLOCK, trials, units))[..., None], drafted], axis=-1)
    columns = np.empty((trials, units, 2 * seconds.shape[-1]))
    columns[..., 0::2], columns[..., 1::2] = seconds, tokens[..., None]
    return columns


@dataclass(frozen=True)
class _Judged:
    """Of each trial [N]: the champion's log speedup and its bounds, and both decisions."""

    value: Array
    low: Array
    high: Array
    ship: Array
    refuse: Array


def _judge(columns: Array, setting: Setting, method: str) -> _Judged:
    """What is concluded at a margin of 1: log speedups above 0 pay."""
    values, low, high, slower = _METHODS[method](columns, setting)
    best = _champion(low, slower, setting)
    value, low, high = (
        np.take_along_axis(each, best, axis=1)[:, 0] for each in (values, low, high)
    )
    ship, refuse = low > 0, high <= 0
    for domain in range(setting.domains):
        mine = columns[:, domain * setting.units : (domain + 1) * setting.units]
        _, floor_low, floor_high, _ = _METHODS[method](mine, setting)
        ship, refuse = ship & (floor_low[:, 0] > 0), refuse | (floor_high[:, 0] <= 0)
    return _Judged(value, low, high, ship & ~refuse, refuse)


def _champion(low: Array, slower: Array, setting: Setting) -> Array:
    """The chosen arm [N, 1]: `table.champion` for all trials at once.

    slower [N, A, A]: whether an arm (last axis) is surely slower than another.
    """
    best = low.argmax(axis=1)[:, None]
    if not setting.tie_break:
        return best
    equal = ~np.take_along_axis(slower, best[..., None], axis=1)[:, 0]
    by_draft = equal.reshape(len(low), setting.drafts, setting.ks).any(axis=2)
    named = setting.drafts - 1 - by_draft[:, ::-1].argmax(axis=1)
    mine = np.arange(low.shape[1]) // setting.ks == named[:, None]
    return np.where(mine & equal, low, -np.inf).argmax(axis=1)[:, None]


_Bounds = tuple[Array, Array, Array, Array]
"""Log speedups and their bounds [N, A]; whether an arm is surely slower than another [N, A, A]."""


def _bootstrap(columns: Array, setting: Setting) -> _Bounds:
    """Percentiles of the arms' ratios of sums over resampled units, each arm by itself."""
    del setting
    units = columns.shape[1]
    generator = np.random.default_rng(0)
    counts = generator.multinomial(units, np.full(units, 1 / units), size=RESAMPLES)
    found = []
    for start in range(0, len(columns), CHUNK):
        chunk = columns[start : start + CHUNK]
        resampled = np.log(times_as_fast(counts @ chunk))
        low, high = np.quantile(resampled, [TAIL, 1 - TAIL], axis=1)
        arms = low.shape[1]
        slower = np.zeros((len(chunk), arms, arms), dtype=bool)
        for arm in range(arms if arms > 1 else 0):
            lead = resampled - resampled[..., arm : arm + 1]
            slower[:, arm] = np.quantile(lead, 1 - TAIL, axis=1) < 0
        found.append((np.log(times_as_fast(chunk.sum(axis=1))), low, high, slower))
    values, low, high, slower = (np.concatenate(each) for each in zip(*found, strict=True))
    return values, low, high, slower


def _student(columns: Array, setting: Setting) -> _Bounds:
    """The product's intervals: simultaneous over the arms, corrected for the number of floors."""
    units = columns.shape[1]
    found = jackknife(columns, times_as_fast, LOG)
    pointwise = stats.t.isf(TAIL, units - 1)
    critical = np.full((len(columns), 1), pointwise)
    if found.values.shape[1] > 1:
        critical[:, 0] = [critical_value(one, draws=2000) for one in found.residuals]
    above = stats.t.isf(sidak(setting.domains), units - 1) if setting.domains else critical
    low, high = found.values - critical * found.errors, found.values + above * found.errors
    return found.values, low, high, _surely_slower(found, pointwise)


def _surely_slower(found: Estimates, critical: float) -> Array:
    values, residuals = found.values, found.residuals
    units, arms = residuals.shape[1:]
    slower = np.zeros((len(values), arms, arms), dtype=bool)
    for arm in range(arms):
        lead = residuals - residuals[..., arm : arm + 1]
        error = np.sqrt((lead**2).sum(axis=1) / (units * (units - 1)))
        slower[:, arm] = values - values[:, arm : arm + 1] + critical * error < 0
    return slower


_METHODS = {BOOTSTRAP: _bootstrap, STUDENT: _student}
