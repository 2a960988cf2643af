"""Two evaluations side by side: the same target, loads and prompts, whatever else differs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distill.errors import UserError
from distill.evaluate.intervals import LOGIT, Array, Interval, ratio
from distill.evaluate.pooling import (
    decode_seconds,
    over_independent_units,
    per_token,
    speedups,
)
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Sums, paired, paired_difference, pooled_ratio

LoadKey = tuple[str, int]
"""Sampling setting and batch size."""


@dataclass(frozen=True)
class Arms:
    """A side's plain and champion rows at a load."""

    arm: Arm
    plain: list[Measurement]
    drafted: list[Measurement]

    @property
    def turns(self) -> set[tuple[str, int]]:
        """The turns that the side decoded: conversation and place in it."""
        return {(row.prompt_id, row.turn) for row in self.drafted}

    def units(self) -> dict[str, frozenset[tuple[str, int, int]]]:
        """What each clock timed: conversation, turn and prompt length."""
        found: dict[str, set[tuple[str, int, int]]] = {}
        for row in self.drafted:
            found.setdefault(row.unit, set()).add((row.prompt_id, row.turn, row.prompt_tokens))
        return {unit: frozenset(prompts) for unit, prompts in found.items()}

    def only(self, units: set[str]) -> "Arms":
        kept = ([r for r in rows if r.unit in units] for rows in (self.plain, self.drafted))
        return Arms(self.arm, *kept)

    def alpha(self) -> Sums:
        """Sums of Σ min(p, q) over tested tokens, by conversation."""
        return self._by_conversation(lambda row: row.alpha_sum, lambda row: row.tested)

    def tokens(self) -> Sums:
        """Sums of committed tokens over target passes, by conversation."""
        return self._by_conversation(lambda row: row.committed, lambda row: row.target_passes)

    def _by_conversation(
        self, above: Callable[[Measurement], float], below: Callable[[Measurement], float]
    ) -> Sums:
        return Sums.of(self.drafted, lambda row: row.source, above, below)

    def timed(self) -> tuple[list[Measurement], list[Measurement]]:
        """Plain and drafted rows with the independent units that they belong to."""
        rows = over_independent_units([*self.plain, *self.drafted])
        return [r for r in rows if r.arm == PLAIN_ARM], [r for r in rows if r.arm != PLAIN_ARM]

    def paces(self) -> list[Sums]:
        """Seconds per token of plain decoding and of the champion, by independent unit."""
        return [per_token(rows, decode_seconds) for rows in self.timed()]


@dataclass(frozen=True)
class Side:
    """One evaluation: where it is from, `evaluation.json` and its measurements."""

    name: str
    evaluation: Mapping[str, Any]
    rows: Sequence[Measurement]

    @property
    def loads(self) -> dict[LoadKey, Mapping[str, Any]]:
        return {(load["sampling"], load["batch_size"]): load for load in self.evaluation["loads"]}

    def arms(self, key: LoadKey) -> Arms:
        load = self.loads[key]
        arm = Arm(load["draft"], load["num_draft_tokens"])
        rows = [row for row in self.rows if (row.sampling, row.batch_size) == key]
        rows = sorted(rows, key=lambda row: row.key)  # sums of floats depend on their order
        drafted = [row for row in rows if row.arm == arm]
        units = {row.unit for row in drafted}
        return Arms(arm, [r for r in rows if r.arm == PLAIN_ARM and r.unit in units], drafted)


@dataclass(frozen=True)
class Half:
    """What a side's champion did at a load, over the common prompts.

    dropped: turns that the other side lacks.
    """

    draft: str
    num_draft_tokens: int
    dropped: int
    alpha: Interval
    tokens_per_pass: Interval
    speedup: Interval


@dataclass(frozen=True)
class Contrast:
    """One load: both sides, and what changes from the first to the second.

    alpha_change, tokens_per_pass_change: second − first; speedup_ratio: second / first.
    """

    sampling: str
    batch_size: int
    turns: int
    first: Half
    second: Half
    alpha_change: Interval
    tokens_per_pass_change: Interval
    speedup_ratio: Interval

    @property
    def conclusion(self) -> str:
        """What the interval of the ratio says; A is the first side, B the second."""
        if self.speedup_ratio.low > 1:
            return "B is faster"
        return "A is faster" if self.speedup_ratio.high < 1 else "undecided"


@dataclass(frozen=True)
class Comparison:
    """All loads that both sides have, compared.

    names: of the first and the second side. skipped: names of the loads that only one side has.
    """

    names: tuple[str, str]
    target: str
    loads: list[Contrast]
    skipped: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(first: Side, second: Side) -> Comparison:
    """Compare the champions of both at every common load, over the prompts that both decoded.

    Times belong to whole batches, so at batch sizes above 1 only batches of the same prompts count.

    Raises:
        UserError: other targets, no common load, or no common prompts at one.
    """
    targets = [side.evaluation["target"] for side in (first, second)]
    if targets[0]["weights_sha256"] != targets[1]["weights_sha256"]:
        raise UserError(
            f"{first.name} is of target {targets[0]['id']}, {second.name} of {targets[1]['id']} "
            "with other weights: compare evaluations of one target"
        )
    common = [key for key in first.loads if key in second.loads]
    if not common:
        raise UserError(
            f"no load is in both: {first.name} has {_names(first.loads)}, {second.name} has "
            f"{_names(second.loads)}; give both the same evaluate.samplings and "
            "evaluate.batch_sizes"
        )
    return Comparison(
        names=(first.name, second.name),
        target=targets[0]["id"],
        loads=[_contrast(first, second, key) for key in common],
        skipped=[_name(key) for side in (first, second) for key in side.loads if key not in common],
    )


def _contrast(first: Side, second: Side, key: LoadKey) -> Contrast:
    whole = [side.arms(key) for side in (first, second)]
    timed = [arms.units() for arms in whole]
    units = {unit for unit, prompts in timed[0].items() if timed[1].get(unit) == prompts}
    if not units:
        raise UserError(
            f"{first.name} and {second.name} have no prompt in common at {_name(key)}: evaluate "
            "both on the same prompts, such as evaluate.prompts=FILE, in batches of the same size"
        )
    a, b = (arms.only(units) for arms in whole)
    halves = [
        _half(kept, len(all_.turns - kept.turns)) for kept, all_ in zip((a, b), whole, strict=True)
    ]
    return Contrast(
        sampling=key[0],
        batch_size=key[1],
        turns=len(a.turns),
        first=halves[0],
        second=halves[1],
        alpha_change=paired_difference(b.alpha(), a.alpha()),
        tokens_per_pass_change=paired_difference(b.tokens(), a.tokens()),
        speedup_ratio=paired([*a.paces(), *b.paces()], _ratio_of_speedups),
    )


def _ratio_of_speedups(sums: Array) -> Array:
    """Of plain, drafted, plain, drafted [..., 8]: the second speedup over the first, [..., 1]."""
    paces = ratio(sums)
    return (paces[..., 2:3] / paces[..., 3:4]) / (paces[..., 0:1] / paces[..., 1:2])


def _half(arms: Arms, dropped: int) -> Half:
    plain, drafted = arms.timed()
    return Half(
        draft=arms.arm.candidate,
        num_draft_tokens=arms.arm.num_draft_tokens,
        dropped=dropped,
        alpha=pooled_ratio(arms.alpha(), LOGIT),
        tokens_per_pass=pooled_ratio(arms.tokens()),
        speedup=speedups(plain, [drafted], decode_seconds)[0],
    )


def _name(load: LoadKey) -> str:
    return f"{load[0]}, batch {load[1]}"


def _names(loads: Iterable[LoadKey]) -> str:
    return "; ".join(map(_name, loads))
