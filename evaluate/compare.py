"""Two evaluations side by side: the same target, loads and prompts, whatever else differs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from distill.errors import UserError
from distill.evaluate.pooling import decode_seconds, over_prompts, per_token, speedup
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import (
    Bootstrap,
    Interval,
    Sums,
    paired,
    paired_difference,
    pooled_ratio,
)


@dataclass(frozen=True)
class Side:
    """One evaluation: where it is from, `evaluation.json` and its measurements."""

    name: str
    evaluation: Mapping[str, Any]
    rows: Sequence[Measurement]


@dataclass(frozen=True)
class Half:
    """A side's champion at a load, over the common prompts. dropped: turns the other lacks."""

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


@dataclass(frozen=True)
class Comparison:
    """loads: those of both; skipped: names of the loads that only one side has."""

    names: tuple[str, str]
    target: str
    loads: list[Contrast]
    skipped: list[str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(first: Side, second: Side, bootstrap: Bootstrap) -> Comparison:
    """The champions of both at every common load, over the prompts that both decoded.

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
    loads = [_loads(side) for side in (first, second)]
    common = [key for key in loads[0] if key in loads[1]]
    if not common:
        raise UserError(
            f"no load is in both: {first.name} has {_names(loads[0])}, {second.name} has "
            f"{_names(loads[1])}; give both the same evaluate.samplings and evaluate.batch_sizes"
        )
    return Comparison(
        names=(first.name, second.name),
        target=targets[0]["id"],
        loads=[_contrast(first, second, *key, bootstrap) for key in common],
        skipped=[_name(key) for one in loads for key in one if key not in common],
    )


@dataclass(frozen=True)
class _Arms:
    """A side's plain and champion rows at a load. turns: all that it decoded there."""

    arm: Arm
    plain: list[Measurement]
    drafted: list[Measurement]

    @property
    def turns(self) -> set[tuple[str, int]]:
        return {(row.prompt_id, row.turn) for row in self.drafted}

    def units(self) -> dict[str, frozenset[tuple[str, int, int]]]:
        """What each clock timed: conversation, turn and prompt length."""
        found: dict[str, set[tuple[str, int, int]]] = {}
        for row in self.drafted:
            found.setdefault(row.unit, set()).add((row.prompt_id, row.turn, row.prompt_tokens))
        return {unit: frozenset(prompts) for unit, prompts in found.items()}

    def only(self, units: set[str]) -> "_Arms":
        kept = ([r for r in rows if r.unit in units] for rows in (self.plain, self.drafted))
        return _Arms(self.arm, *kept)


def _contrast(
    first: Side, second: Side, sampling: str, batch_size: int, bootstrap: Bootstrap
) -> Contrast:
    whole = [_arms(side, sampling, batch_size) for side in (first, second)]
    timed = [arms.units() for arms in whole]
    units = {unit for unit, prompts in timed[0].items() if timed[1].get(unit) == prompts}
    if not units:
        raise UserError(
            f"{first.name} and {second.name} have no prompt in common at "
            f"{_name((sampling, batch_size))}: evaluate both on the same prompts, such as "
            "evaluate.prompts=FILE, in batches of the same size"
        )
    a, b = (arms.only(units) for arms in whole)
    halves = [
        _half(kept, len(all_.turns - kept.turns), bootstrap)
        for kept, all_ in zip((a, b), whole, strict=True)
    ]
    return Contrast(
        sampling=sampling,
        batch_size=batch_size,
        turns=len(a.turns),
        first=halves[0],
        second=halves[1],
        alpha_change=paired_difference(_alpha(b), _alpha(a), bootstrap),
        tokens_per_pass_change=paired_difference(_tokens(b), _tokens(a), bootstrap),
        speedup_ratio=paired(
            [per_token(rows, decode_seconds) for arms in (a, b) for rows in _both(arms)],
            lambda each: (each[2] / each[3]) / (each[0] / each[1]),
            bootstrap,
        ),
    )


def _half(arms: _Arms, dropped: int, bootstrap: Bootstrap) -> Half:
    return Half(
        draft=arms.arm.candidate,
        num_draft_tokens=arms.arm.num_draft_tokens,
        dropped=dropped,
        alpha=over_prompts(arms.drafted, "alpha_sum", "tested", bootstrap),
        tokens_per_pass=pooled_ratio(_tokens(arms), bootstrap),
        speedup=speedup(arms.plain, arms.drafted, decode_seconds, bootstrap),
    )


def _arms(side: Side, sampling: str, batch_size: int) -> _Arms:
    load = _loads(side)[sampling, batch_size]
    arm = Arm(load["draft"], load["num_draft_tokens"])
    rows = [r for r in side.rows if (r.sampling, r.batch_size) == (sampling, batch_size)]
    rows = sorted(rows, key=lambda row: row.key)  # sums of floats depend on their order
    drafted = [row for row in rows if row.arm == arm]
    units = {row.unit for row in drafted}
    return _Arms(arm, [r for r in rows if r.arm == PLAIN_ARM and r.unit in units], drafted)


def _both(arms: _Arms) -> tuple[list[Measurement], list[Measurement]]:
    return arms.plain, arms.drafted


def _alpha(arms: _Arms) -> Sums:
    return Sums.of(
        arms.drafted, lambda row: row.prompt_id, lambda row: row.alpha_sum, lambda row: row.tested
    )


def _tokens(arms: _Arms) -> Sums:
    return Sums.of(
        arms.drafted,
        lambda row: row.prompt_id,
        lambda row: row.committed,
        lambda row: row.target_passes,
    )


def _loads(side: Side) -> dict[tuple[str, int], Mapping[str, Any]]:
    return {(load["sampling"], load["batch_size"]): load for load in side.evaluation["loads"]}


def _name(load: tuple[str, int]) -> str:
    return f"{load[0]}, batch {load[1]}"


def _names(loads: Mapping[tuple[str, int], Any]) -> str:
    return "; ".join(map(_name, loads))
