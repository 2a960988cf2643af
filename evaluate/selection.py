"""What choosing costs: an evaluation of everything, chosen from again as a job would have.

Its rows know what every candidate did at every k on every prompt. A job that screens and races
would have seen some of them, in some order of the prompts: so it is played again on these rows, in
many orders, without decoding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean, median

from distill.evaluate.pooling import ratio
from distill.evaluate.racing import FIRST_ROUND, passes, race
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.select import champion, tabulate
from distill.evaluate.speed import round_ends
from distill.evaluate.statistics import Bootstrap


@dataclass(frozen=True)
class Way:
    """A way to choose. names: candidates that are decoded. racing: whether they race.

    screening: what picking the names cost, as a share of the passes of decoding everything.
    """

    name: str
    names: Sequence[str]
    racing: bool
    screening: float = 0.0


@dataclass(frozen=True)
class Choice:
    """What one way chose in each order of the prompts.

    passes_share: of the target passes of decoding everything, median, least and most. same: share
    of orders that named the champion of decoding everything. kept: speed of the named ones over
    that champion's, over all prompts, in the mean.
    """

    way: str
    decoded: int
    passes_share: float
    passes_low: float
    passes_high: float
    same: float
    kept: float


def choices(
    rows: Sequence[Measurement],
    ways: Sequence[Way],
    held_out: Mapping[str, float],
    bootstrap: Bootstrap,
    orders: int,
    seed: int,
) -> list[Choice]:
    """Play every way in `orders` orders. rows: of one load, each arm over each unit.

    held_out: teacher-forced alpha by candidate, as `conclude` takes it.
    """
    by_unit: dict[str, list[Measurement]] = {}
    for row in rows:
        by_unit.setdefault(row.unit, []).append(row)
    arms = list({row.arm: None for row in rows if row.arm != PLAIN_ARM})
    best = _named(rows, held_out, bootstrap)
    pace = {
        arm: ratio([row for row in rows if row.arm == arm], "decode_seconds", "committed")
        for arm in arms
    }
    shuffled = _orders(sorted(by_unit), orders, seed)
    found = []
    for way in ways:
        played = [_play(by_unit, order, way, arms, held_out, bootstrap) for order in shuffled]
        shares = [share for share, _ in played]
        named = [arm for _, arm in played]
        found.append(
            Choice(
                way=way.name,
                decoded=len(way.names),
                passes_share=median(shares),
                passes_low=min(shares),
                passes_high=max(shares),
                same=fmean(arm == best for arm in named),
                kept=fmean(pace[best] / pace[arm] for arm in named),
            )
        )
    return found


def _play(
    by_unit: Mapping[str, Sequence[Measurement]],
    order: Sequence[str],
    way: Way,
    arms: Sequence[Arm],
    held_out: Mapping[str, float],
    bootstrap: Bootstrap,
) -> tuple[float, Arm]:
    """Share of the passes spent, and the arm that was named."""
    decoded = [arm for arm in arms if arm.candidate in way.names]
    entrants = race(decoded, bootstrap) if way.racing else lambda _: decoded
    seen: list[Measurement] = []
    for start, stop in pairwise(round_ends(len(order), FIRST_ROUND if way.racing else None)):
        entered = {PLAIN_ARM, *entrants(seen)}
        seen += [row for n in order[start:stop] for row in by_unit[n] if row.arm in entered]
    spent, _ = passes(seen, decoded)
    whole, _ = passes([row for unit in order for row in by_unit[unit]], arms)
    return way.screening + spent / whole, _named(seen, held_out, bootstrap)


def _named(rows: Sequence[Measurement], held_out: Mapping[str, float], bootstrap: Bootstrap) -> Arm:
    return champion(tabulate(rows, bootstrap), rows, held_out, bootstrap).arm


def _orders(units: list[str], count: int, seed: int) -> list[list[str]]:
    random = Random(seed)
    return [random.sample(units, len(units)) for _ in range(count)]
