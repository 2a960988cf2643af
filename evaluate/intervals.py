"""95% intervals for ratios of sums over independent units: of one, and of many arms at once.

Percentile bootstraps of 5 to 24 units are too narrow, and the best of twelve arms is the luckiest
of them: `benchmark/error_rates.py` has the size of both. Here every bound is value ± critical value
· standard error, on a scale where the estimate is close to normal. The error is the delete-one
jackknife's (Efron and Stein 1981, "The jackknife estimate of variance", which shows that it is not
too small on average). The critical value is Student's, with fewer degrees of freedom where few
units have most of the tokens, or, for one of several arms, that of the largest of their t
statistics.

Shapes: U units (what was drawn independently: see `independence.py`), C columns (the numerator and
the denominator of each arm), A estimates, "..." any leading axes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from distill.errors import UserError

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Maps sums over units [..., C] to A estimates [..., A]."""

TAIL = 0.025
"""Probability that a bound is on the wrong side of the truth: a 95% interval has two of them."""
FEWEST_UNITS = 5
"""From fewer units a standard error is hardly known, and no verdict is given."""
POWER = 0.8
"""Probability with which the units that `more_units` asks for are enough."""
DRAWS = 10_000
_BLOCK = 4_000_000  # normal variates that exist at once: 32 MB


@dataclass(frozen=True)
class Interval:
    """A pooled value, its 95% bounds and its standard error on the scale they were made on.

    NaN where nothing was counted; the bounds and the error are NaN where one unit was.
    """

    value: float
    low: float
    high: float
    error: float = float("nan")

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Scale:
    """forward leads to the scale on which the bounds are made, back from it. Both are monotone."""

    forward: Callable[[Array], Array]
    back: Callable[[Array], Array]


def _logit(share: Array) -> Array:
    """A share of exactly 0 or 1 (a draft that is the target) keeps a finite place."""
    return special.logit(np.clip(share, 1e-9, 1 - 1e-9))


LINEAR = Scale(np.asarray, np.asarray)
LOG = Scale(np.log, np.exp)
"""For a positive ratio, such as a speedup: its bounds are those of its inverse, inverted."""
LOGIT = Scale(_logit, special.expit)
"""For a share, such as alpha: its bounds stay between 0 and 1."""


@dataclass(frozen=True)
class Estimates:
    """natural and values [..., A]: before and on the scale; errors [..., A] on the scale.

    residuals [..., U, A]: how far each unit pulls the estimate; they sum to 0 over the units, and
    their correlation is that of the estimates. weights [..., U]: the units' shares of the
    denominators, in the mean over the arms.
    """

    natural: Array
    values: Array
    errors: Array
    residuals: Array
    weights: Array


def ratio(sums: Array) -> Array:
    """The ratio of each arm. sums [..., 2·A]: numerator and denominator, arm after arm."""
    return np.asarray(np.true_divide(sums[..., 0::2], sums[..., 1::2]))


def times_as_fast(sums: Array) -> Array:
    """The ratio of the first arm over that of each other. sums [..., 2 + 2·A]."""
    ratios = ratio(sums)
    return ratios[..., :1] / ratios[..., 1:]


def difference(sums: Array) -> Array:
    """The ratio of the first arm minus that of each other. sums [..., 2 + 2·A]."""
    ratios = ratio(sums)
    return ratios[..., :1] - ratios[..., 1:]


def jackknife(columns: Array, statistic: Statistic, scale: Scale = LINEAR) -> Estimates:
    """Estimates and standard errors from the sums of each unit, columns [..., U, C]."""
    units = columns.shape[-2]
    total = columns.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        natural = statistic(total)
        without = scale.forward(statistic(total[..., None, :] - columns))
        residuals = (units - 1) * (without.mean(axis=-2, keepdims=True) - without)
        errors = np.sqrt((residuals**2).sum(axis=-2) / (units * np.float64(units - 1)))
        weights = (columns[..., 1::2] / total[..., None, 1::2]).mean(axis=-1)
        return Estimates(natural, scale.forward(natural), errors, residuals, weights)


def freedom(weights: Array) -> Array:
    """Degrees of freedom [...] of the jackknife's error of a mean with the weights [..., U].

    They are Satterthwaite's, as Bell and McCaffrey (2002, "Bias reduction in standard errors for
    linear regression with multi-stage samples", section 4) take them: 2 · mean² / variance of the
    squared error where the units vary alike. Equal weights have U − 1.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        leverage = (weights / (1 - weights)) ** 2
        alike = (weights**2).sum(axis=-1)[..., None, None]
        covariance = alike - weights[..., :, None] - weights[..., None, :]
        covariance = covariance + np.eye(weights.shape[-1])
        mean = (leverage * np.diagonal(covariance, axis1=-2, axis2=-1)).sum(axis=-1)
        pairs = leverage[..., :, None] * leverage[..., None, :] * covariance**2
        return mean**2 / pairs.sum(axis=(-2, -1))


def interval(columns: Array, statistic: Statistic = ratio, scale: Scale = LOG) -> Interval:
    """The interval of one estimate, from columns [U, C]. UserError if there is no unit."""
    return intervals(columns, statistic, scale)[0]


def intervals(
    columns: Array, statistic: Statistic = times_as_fast, scale: Scale = LOG, floors: int = 0
) -> list[Interval]:
    """Intervals of A estimates, all valid at once: whichever is chosen, by whatever rule.

    All lower bounds are below the truth with 97.5%, and all upper ones above it with 97.5%.

    floors: this is one of so many domains that each have a floor. *Do not ship* is said where one
    of their upper bounds is too low, so that each is Šidák's (1967, "Rectangular confidence
    regions for the means of multivariate normal distributions"): with 97.5% all of them hold. They
    are of one arm each, since choosing a fast one only lifts them. *Ship* needs every lower bound
    above its floor, which no number of floors makes likelier (Berger 1982, "Multiparameter
    hypothesis testing and acceptance sampling"), but the choice among the arms does.

    Raises:
        UserError: there is no unit.
    """
    if not len(columns):
        raise UserError("no measurement to pool: give at least one prompt")
    found = jackknife(columns, statistic, scale)
    low = high = critical_value(found)
    if floors:
        high = float(stats.t.isf(sidak(floors), freedom(found.weights)))
    return [_bounded(found, arm, low, high, scale) for arm in range(found.values.shape[-1])]


def sidak(claims: int) -> float:
    """Tail probability of each of `claims` independent bounds that all hold with 1 − TAIL."""
    return 1 - (1 - TAIL) ** (1 / claims)


def critical_value(found: Estimates, draws: int = DRAWS, seed: int = 0) -> float:
    """The value that the largest of A t statistics exceeds with probability TAIL.

    It is max-t (Hothorn, Bretz and Westfall 2008, "Simultaneous inference in general parametric
    models", section 3) with the correlation of the residuals, simulated: `draws` times, U normal
    vectors of A entries are drawn and jackknifed as the measurements are, so that each arm has a
    standard error of its own. Twelve arms on sixteen units have a correlation that is noisy and may
    be singular; Schäfer and Strimmer's shrinkage (2005, "A shrinkage approach to large-scale
    covariance matrix estimation", section 2.4) mends both.

    Estimates without spread take no part. NaN where a single unit was counted.
    """
    residuals, weights = found.residuals, found.weights
    units = len(residuals)
    told = np.isfinite(found.errors) & (found.errors > 0)
    arms = int(told.sum())
    if units < 2:
        return float("nan")
    if arms < 2:
        return float(stats.t.isf(TAIL, freedom(weights)))
    standard = residuals[:, told] / (found.errors[told] * np.sqrt(units))
    tiny = 1e-9 * np.eye(arms)  # for two units, whose correlation of ±1 is not shrunk
    mix = np.linalg.cholesky(_shrunk_correlation(standard) + tiny).T.astype(np.float64)
    step = max(1, _BLOCK // (arms * units))
    largest = [
        _largest_t(mix, weights, min(step, draws - start), seed + start)
        for start in range(0, draws, step)
    ]
    return float(np.quantile(np.concatenate(largest), 1 - TAIL))


def more_units(speedup: Interval, units: int, margin: float) -> int | None:
    """How many more units put the lower bound above `margin` with a probability of POWER.

    Taken are the measured effect, the measured spread of the units, and as many arms as the
    interval was made for. None: the effect is at or below the margin, so more units would not
    help. 0: the bound is above it. speedup: made on the LOG scale from `units` units.
    """
    effect = float(np.log(speedup.value / margin))
    if not effect > 0:
        return None
    if units < 2 or np.isnan(speedup.error):
        return max(FEWEST_UNITS - units, 1)
    least = max(FEWEST_UNITS - units, 0)
    if speedup.low > margin or speedup.error == 0:
        return least
    spread = speedup.error * np.sqrt(units)
    critical = np.log(speedup.value / speedup.low) / speedup.error  # also of the largest of many
    tail = stats.t.sf(critical, units - 1)

    def enough(number: int) -> bool:
        freedom = float(number - 1)
        needed = stats.t.isf(tail, freedom) + stats.t.isf(1 - POWER, freedom)
        return bool(needed * spread / np.sqrt(float(number)) <= effect)

    short, long = units, 2 * units
    while not enough(long):
        short, long = long, 2 * long
    while long - short > 1:
        middle = (short + long) // 2
        short, long = (short, middle) if enough(middle) else (middle, long)
    return max(long - units, least)


def _bounded(found: Estimates, arm: int, below: float, above: float, scale: Scale) -> Interval:
    """Value − below · error to value + above · error, on the scale."""
    value, error = found.natural[arm], found.errors[arm]
    if error == 0:  # every unit has the very same ratio, such as alpha = 1 of target against target
        return Interval(float(value), float(value), float(value), 0.0)
    place = found.values[arm]
    low, high = scale.back(place - below * error), scale.back(place + above * error)
    return Interval(float(value), float(low), float(high), float(error))


def _shrunk_correlation(standard: Array) -> Array:
    """The correlation [A, A] of residuals [U, A] of variance 1, drawn towards independence.

    Its entries off the diagonal are multiplied by 1 − λ; λ = Σ Var(r) / Σ r², at most 1.
    """
    units, arms = standard.shape
    correlation = standard.T @ standard / (units - 1)
    products = standard[:, :, None] * standard[:, None, :]
    variance = products.var(axis=0) * units**2 / (units - 1) ** 3
    others = ~np.eye(arms, dtype=bool)
    total = (correlation[others] ** 2).sum()
    share = min(1.0, variance[others].sum() / total) if total else 1.0
    return np.asarray((1 - share) * correlation + share * np.eye(arms), dtype=np.float64)


def _largest_t(mix: Array, weights: Array, draws: int, seed: int) -> Array:
    """The largest of the arms' t statistics [draws]; mix [A, A] makes their correlation."""
    units, arms = len(weights), len(mix)
    samples = (_normals(units, draws, arms, seed) @ mix).reshape(units, draws * arms)
    # A unit left out moves the mean by pull · (sample − mean). The variance of these moves is made
    # from sums over units, which one product gives for all draws.
    pull = weights / (1 - weights)
    means, pulled, twice_pulled = np.stack([weights, pull, pull**2]) @ samples
    total = pulled - means * pull.sum()
    squares = pull**2 @ samples**2 - 2 * means * twice_pulled + means**2 * (pull**2).sum()
    errors = np.sqrt((squares - total**2 / units) * (units - 1) / units)
    return (means / errors).reshape(draws, arms).max(axis=-1)


@lru_cache(maxsize=1)
def _normals(units: int, draws: int, arms: int, seed: int) -> Array:
    """Standard normal variates [U, draws, A]."""
    return np.random.default_rng(seed).standard_normal((units, draws, arms))
