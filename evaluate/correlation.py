"""How well cheap numbers rank candidates: their correlation with what real decoding measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from distill.evaluate.candidates import HeldOutScores
from distill.evaluate.table import TableRow

FEWEST_CANDIDATES = 3
"""Two points always lie on a line."""
PROXIES = ("kl", "teacher_forced_alpha", "agreement")
MEASURED = ("alpha", "speedup")


@dataclass(frozen=True)
class Point:
    """One candidate: its proxies, and its alpha and speedup in real decoding."""

    candidate: str
    kl: float
    teacher_forced_alpha: float
    agreement: float
    alpha: float
    speedup: float


@dataclass(frozen=True)
class Correlation:
    """Of one proxy with one measured number over the candidates; NaN where either is constant."""

    proxy: str
    measured: str
    spearman: float
    pearson: float
    candidates: int


@dataclass(frozen=True)
class Proxies:
    points: list[Point]
    correlations: list[Correlation]


def correlate(table: Sequence[TableRow], scores: Mapping[str, HeldOutScores]) -> Proxies | None:
    """Over the lines of one k; None with fewer than three candidates that have both."""
    points = [
        Point(
            row.candidate,
            held_out.kl,
            held_out.alpha,
            held_out.agreement,
            row.alpha.value,
            row.speedup.value,
        )
        for row in table
        if (held_out := scores.get(row.candidate)) is not None
    ]
    if len(points) < FEWEST_CANDIDATES:
        return None
    return Proxies(points, [_between(points, x, y) for x in PROXIES for y in MEASURED])


def _between(points: Sequence[Point], proxy: str, measured: str) -> Correlation:
    x = np.array([getattr(point, proxy) for point in points])
    y = np.array([getattr(point, measured) for point in points])
    constant = np.ptp(x) == 0 or np.ptp(y) == 0
    if constant:
        return Correlation(proxy, measured, float("nan"), float("nan"), len(points))
    spearman = np.corrcoef(rankdata(x), rankdata(y))[0, 1]  # Pearson's of the ranks
    pearson = np.corrcoef(x, y)[0, 1]
    return Correlation(proxy, measured, float(spearman), float(pearson), len(points))
