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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distill.evaluate.intervals import (
    LOG,
    TAIL,
    Array,
    Estimates,
    critical_value,
    freedom,
    jackknife,
    sidak,
    times_as_fast,
)

Truth = NDArray[np.bool_]

BOOTSTRAP, STUDENT = "percentile bootstrap", "t, simultaneous"
METHODS = (BOOTSTRAP, STUDENT)
ACCEPTANCE, DRAFT, CLOCK, LENGTH = 0.08, 0.05, 0.05, 0.08
"""Standard deviations of the logs; LENGTH is of a unit's time for a token, whoever decodes."""
MOST_TOKENS = 64
WELL_ABOVE = 1.5
RESAMPLES = 1000
DRAWS_OF_A_TRIAL = 2000
"""For max-t; an evaluation takes more."""
CHUNK = 100
"""Trials whose resamples exist at once."""


@dataclass(frozen=True)
class Setting:
    """drafts × ks arms on `units` units; with domains, on `units` in each of them.

    tie_break: among drafts that are not surely slower, held-out rows name one, whatever its speed;
    here it is the last. domains: each has a floor, which is the margin.
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
    """A simulated mean and its Monte-Carlo standard error; printed in percent."""

    mean: float
    error: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} ± {100 * self.error:.1f}"


@dataclass(frozen=True)
class Rates:
    """What a method does in a setting. Nominal: 0.025, 0.025, 0.95.

    false_ships, false_refusals: shares of *ship* and *do not ship* where every true speedup is the
    margin; with floors, the false ships are those where one domain is at its floor and the others
    far above it. coverage: share of champions' intervals that hold the truth. overstatement: by
    which the champion's measured speedup exceeds the true one in the mean. power: share of *ship*
    where every true speedup is 1.15 times the margin.
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
    trials: int = 1000,
    seed: int = 0,
) -> Iterator[Rates]:
    """For each setting in turn one line a method, of the same simulated evaluations."""
    for setting in settings:
        worthless = _simulate(setting, 1.0, trials, np.random.default_rng([seed, 0]))
        good = _simulate(setting, 1.15, trials, np.random.default_rng([seed, 1]))
        weak = worthless.copy()
        weak[:, setting.units :, 2::2] /= WELL_ABOVE
        for method in methods:
            null = _judge(worthless, setting, method)
            one_weak = _judge(weak, setting, method) if setting.domains else null
            better = _judge(good, setting, method)
            yield Rates(
                setting,
                method,
                false_ships=_share(one_weak.ship),
                false_refusals=_share(null.refuse),
                coverage=_share((null.low <= 0) & (null.high >= 0)),
                overstatement=_share(np.expm1(null.value)),
                power=_share(better.ship),
            )


def markdown(found: Iterable[Rates]) -> str:
    """The table of RESULTS.md, in percent with Monte-Carlo standard errors."""
    lines = [
        "| setting | intervals | false *ship* | false *do not ship* | coverage | over | power |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for one in found:
        cells = (
            one.setting.name,
            one.method,
            one.false_ships,
            one.false_refusals,
            one.coverage,
            one.overstatement,
            one.power,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def with_heavy_tails(settings: Sequence[Setting] = SETTINGS) -> list[Setting]:
    return [replace(one, name=f"{one.name}, heavy tails", heavy_tails=True) for one in settings]


def _share(found: NDArray[Any]) -> Share:
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
    ship: Truth
    refuse: Truth


def _judge(columns: Array, setting: Setting, method: str) -> _Judged:
    """What is concluded at a margin of 1: log speedups above 0 pay."""
    bounds = _bootstrap if method == BOOTSTRAP else _student
    values, low, high, slower = bounds(columns)
    best = _champion(low, slower, setting, method)

    def of_best(each: Array) -> Array:
        return np.take_along_axis(each, best, axis=1)[:, 0]

    value, low, high = of_best(values), of_best(low), of_best(high)
    ship, refuse = low > 0, high <= 0
    for domain in range(setting.domains):
        mine = columns[:, domain * setting.units : (domain + 1) * setting.units]
        _, floor_low, floor_high, _ = bounds(mine, setting.domains)
        ship, refuse = ship & (of_best(floor_low) > 0), refuse | (of_best(floor_high) <= 0)
    return _Judged(value, low, high, ship & ~refuse, refuse)


def _champion(low: Array, slower: Truth, setting: Setting, method: str) -> NDArray[np.intp]:
    """The chosen arm [N, 1], of the highest lower bound unless held-out rows name another draft.

    Simultaneous bounds hold for any choice, so that a draft may be asked to reach the margin where
    the fastest does: the tie-break then costs no power.
    """
    best = low.argmax(axis=1)[:, None]
    if not setting.tie_break:
        return best
    equal = ~slower
    if method == STUDENT:
        equal &= (low > 0) | (low.max(axis=1, keepdims=True) <= 0)
    by_draft = np.asarray(equal.reshape(len(low), setting.drafts, setting.ks).any(axis=2))
    named = setting.drafts - 1 - by_draft[:, ::-1].argmax(axis=1)
    mine = np.arange(low.shape[1]) // setting.ks == named[:, None]
    return np.where(mine & equal, low, -np.inf).argmax(axis=1)[:, None]


_Bounds = tuple[Array, Array, Array, Truth]
"""Log speedups, their bounds, and whether an arm is surely slower than the fastest: all [N, A]."""


def _bootstrap(columns: Array, floors: int = 0) -> _Bounds:
    """Percentiles of the arms' ratios of sums over resampled units, each by itself."""
    del floors
    units = columns.shape[1]
    generator = np.random.default_rng(0)
    counts = generator.multinomial(units, np.full(units, 1 / units), size=RESAMPLES)
    found = []
    for start in range(0, len(columns), CHUNK):
        chunk = columns[start : start + CHUNK]
        resampled = np.log(times_as_fast(counts @ chunk))
        low, high = np.quantile(resampled, [TAIL, 1 - TAIL], axis=1)
        fastest = np.take_along_axis(resampled, low.argmax(axis=1)[:, None, None], axis=2)
        slower = np.quantile(resampled - fastest, 1 - TAIL, axis=1) < 0
        found.append((np.log(times_as_fast(chunk.sum(axis=1))), low, high, slower))
    values, low, high, slower = (np.concatenate(each) for each in zip(*found, strict=True))
    return values, low, high, slower


def _student(columns: Array, floors: int = 0) -> _Bounds:
    """The bounds of `intervals`, for all trials at once."""
    found = jackknife(columns, times_as_fast, LOG)
    degrees = freedom(found.weights)[:, None]
    below = stats.t.isf(TAIL, degrees)
    if found.values.shape[1] > 1:
        each = (_of_trial(found, trial) for trial in range(len(columns)))
        below = np.array([[critical_value(one, DRAWS_OF_A_TRIAL)] for one in each])
    above = stats.t.isf(sidak(floors), degrees) if floors else below
    low, high = found.values - below * found.errors, found.values + above * found.errors
    fastest = low.argmax(axis=1)[:, None]
    lead = found.residuals - np.take_along_axis(found.residuals, fastest[:, None], axis=2)
    units = columns.shape[1]
    behind = found.values - np.take_along_axis(found.values, fastest, axis=1)
    error = np.sqrt((lead**2).sum(axis=1) / (units * (units - 1)))
    return found.values, low, high, behind + stats.t.isf(TAIL, degrees) * error < 0


def _of_trial(found: Estimates, trial: int) -> Estimates:
    return Estimates(
        found.natural[trial],
        found.values[trial],
        found.errors[trial],
        found.residuals[trial],
        found.weights[trial],
    )
