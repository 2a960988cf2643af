"""The table of a load: measurements pooled to one line per arm, and the champion among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from distill.errors import UserError
from distill.evaluate.intervals import Interval
from distill.evaluate.pooling import (
    alpha,
    by_arm,
    decode_seconds,
    end_to_end_seconds,
    ratio,
    speedups,
)
from distill.evaluate.records import LOOKUP, PLAIN_ARM, Arm, Measurement
from distill.speculative.prediction import Cost, expected_tokens


@dataclass(frozen=True)
class TableRow:
    """What one arm did, pooled over its prompts. The words are the design's.

    speedup and its prediction are of decoding; speedup_end_to_end includes prompt passes.
    verify_cost is v; tested_at[i] and alpha_at[i] belong to the i-th drafted token of a round.
    expected_tokens and drafts_per_pass are what the prediction is made from: at a fixed k the
    formula's (1 − alpha^(k+1)) / (1 − alpha) and k; where rounds end by confidence there is no such
    formula, and they are 1 + alpha · (drafts tested per pass) and the steps counted.
    """

    candidate: str
    num_draft_tokens: int
    confidence_threshold: float
    units: int
    alpha: Interval
    alpha_empirical: float
    tokens_per_pass: float
    draft_utilisation: float
    cost_ratio: float
    verify_cost: float
    expected_tokens: float
    drafts_per_pass: float
    predicted_speedup: float
    speedup: Interval
    speedup_end_to_end: Interval
    engine_efficiency: float
    tested_at: list[int]
    alpha_at: list[float]

    @property
    def arm(self) -> Arm:
        return Arm(self.candidate, self.num_draft_tokens)

    @property
    def cost(self) -> Cost:
        return Cost(self.cost_ratio, self.verify_cost)

    @property
    def predicted_v1(self) -> float:
        """The predicted speedup with v = 1, as the paper has it."""
        return Cost(self.cost_ratio).speedup(self.expected_tokens, self.drafts_per_pass)


def tabulate(rows: Sequence[Measurement]) -> list[TableRow]:
    """One line per arm, by candidate and k. Rows of one setting only: UserError otherwise.

    rows: with independent units (`over_independent_units`). The intervals of the speedups hold for
    all arms at once, so they hold for whichever is chosen.
    """
    if len({(row.sampling, row.batch_size) for row in rows}) > 1:
        raise UserError(
            "a table is of one sampling setting and one batch size: filter the rows first"
        )
    arms = by_arm(sorted(rows, key=lambda row: row.key))  # sums of floats depend on their order
    plain = arms.pop(PLAIN_ARM, None)
    if plain is None:
        raise UserError("no plain decoding among the rows: there is nothing to be faster than")
    ordered = sorted(arms, key=_by_name)
    every = [arms[arm] for arm in ordered]
    if not every:
        return []
    decoding = speedups(plain, every, decode_seconds)
    whole = speedups(plain, every, end_to_end_seconds)
    return [
        _line(mine, plain, faster, in_all)
        for mine, faster, in_all in zip(every, decoding, whole, strict=True)
    ]


def fastest(table: Sequence[TableRow]) -> TableRow:
    """The arm of the highest lower bound of speedup end to end; between equals of more alpha."""
    if not table:
        raise UserError("no candidate was measured: give at least one draft and one k")
    return max(table, key=lambda row: (_or_lowest(row.speedup_end_to_end.low), row.alpha.value))


def champion(
    table: Sequence[TableRow],
    rows: Sequence[Measurement],
    held_out: Mapping[str, float],
    margin: float = 1.0,
) -> TableRow:
    """The fastest, or in its place the arm whose draft agrees more on held-out rows.

    Only arms that are not surely slower, paired over the prompts, take part, and where the fastest
    is surely above the margin, only those that are, too: a few prompts seldom tell neighbouring
    checkpoints apart, thousands of held-out tokens do. held_out: agreement by candidate; where the
    fastest has none, decoding alone decides.
    """
    trained = [row for row in table if row.candidate != LOOKUP]
    best = fastest(trained)
    if best.candidate not in held_out:
        return best
    arms = by_arm(rows)
    pays = best.speedup_end_to_end.low > margin
    equals = [
        row
        for row in trained
        if row.candidate in held_out
        and not speedups(arms[best.arm], [arms[row.arm]], end_to_end_seconds)[0].high < 1
        and (row.speedup_end_to_end.low > margin or not pays)
    ]
    named = max(equals, key=lambda row: held_out[row.candidate]).candidate
    return fastest([row for row in equals if row.candidate == named])


def _or_lowest(bound: float) -> float:
    """A bound that one unit could not give is below all others."""
    return float("-inf") if isnan(bound) else bound


def _by_name(arm: Arm) -> tuple[str, int]:
    return arm.candidate, arm.num_draft_tokens


def _line(
    rows: list[Measurement], plain: list[Measurement], faster: Interval, in_all: Interval
) -> TableRow:
    found = alpha(rows)
    cost = Cost.measured(plain, rows)
    expected, drafts = _expected(rows, found.value)
    predicted = cost.speedup(expected, drafts)
    tested = _sum_lists([row.tested_at for row in rows])
    return TableRow(
        candidate=rows[0].candidate,
        num_draft_tokens=rows[0].num_draft_tokens,
        confidence_threshold=rows[0].confidence_threshold,
        units=len({row.unit for row in rows}),
        alpha=found,
        alpha_empirical=ratio(rows, "accepted", "tested"),
        tokens_per_pass=ratio(rows, "committed", "target_passes"),
        draft_utilisation=ratio(rows, "accepted", "drafted"),
        cost_ratio=cost.c,
        verify_cost=cost.v,
        expected_tokens=expected,
        drafts_per_pass=drafts,
        predicted_speedup=predicted,
        speedup=faster,
        speedup_end_to_end=in_all,
        engine_efficiency=faster.value / predicted,
        tested_at=[int(count) for count in tested],
        alpha_at=[
            total / count if count else float("nan")
            for total, count in zip(_sum_lists([r.alpha_at for r in rows]), tested, strict=True)
        ],
    )


def _expected(rows: list[Measurement], alpha: float) -> tuple[float, float]:
    """Tokens and drafts per pass that alpha makes one expect; NaN tokens where none was tested."""
    k = rows[0].num_draft_tokens
    if rows[0].confidence_threshold:
        tokens = 1 + alpha * ratio(rows, "tested", "target_passes")
        return tokens, ratio(rows, "draft_steps", "verify_steps")
    # Sums of floats may pass 1.
    return (expected_tokens(min(alpha, 1.0), k) if alpha >= 0 else float("nan")), k


def _sum_lists(lists: Sequence[Sequence[float]]) -> list[float]:
    longest = max(map(len, lists))
    return [sum(values[i] for values in lists if i < len(values)) for i in range(longest)]
