"""From rows to one line per (candidate, k), and the champion among them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distill.errors import UserError
from distill.evaluate.acceptance import Cost, predicted_speedup
from distill.evaluate.records import PLAIN_ARM, Arm, Measurement
from distill.evaluate.statistics import Bootstrap, Interval, Sums, paired_ratio, pooled_ratio


@dataclass(frozen=True)
class TableRow:
    """What one arm did, pooled over its prompts. The words are the design's.

    speedup and its prediction are of decoding; speedup_end_to_end includes prompt passes.
    verify_cost is v; tested_at[i] and alpha_at[i] belong to the i-th drafted token of a round.
    """

    candidate: str
    num_draft_tokens: int
    units: int
    alpha: Interval
    alpha_empirical: float
    tokens_per_pass: float
    draft_utilisation: float
    cost_ratio: float
    verify_cost: float
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


def tabulate(rows: Sequence[Measurement], bootstrap: Bootstrap) -> list[TableRow]:
    """One line per arm, by candidate and k. Rows of one setting only: UserError otherwise."""
    if len({(row.sampling, row.batch_size) for row in rows}) > 1:
        raise UserError(
            "a table is of one sampling setting and one batch size: filter the rows first"
        )
    by_arm: dict[Arm, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.key):  # sums of floats depend on their order
        by_arm.setdefault(row.arm, []).append(row)
    plain = by_arm.pop(PLAIN_ARM, None)
    if plain is None:
        raise UserError("no plain decoding among the rows: there is nothing to be faster than")
    return [_line(by_arm[arm], plain, bootstrap) for arm in sorted(by_arm, key=_by_name)]


def champion(table: Sequence[TableRow]) -> TableRow:
    """Highest lower bound of speedup; between equals the higher alpha."""
    if not table:
        raise UserError("no candidate was measured: give at least one draft and one k")
    return max(table, key=lambda row: (row.speedup.low, row.alpha.value))


def _by_name(arm: Arm) -> tuple[str, int]:
    return arm.candidate, arm.num_draft_tokens


def _line(rows: list[Measurement], plain: list[Measurement], bootstrap: Bootstrap) -> TableRow:
    plain = _same_units(plain, rows)
    k = rows[0].num_draft_tokens
    alpha = _over_prompts(rows, "alpha_sum", "tested", bootstrap)
    cost = _cost(rows, plain)
    speedup = _speedup(plain, rows, lambda row: row.decode_seconds, bootstrap)
    predicted = (
        predicted_speedup(min(alpha.value, 1.0), k, cost) if alpha.value >= 0 else float("nan")
    )
    tested = _sum_lists([row.tested_at for row in rows])
    return TableRow(
        candidate=rows[0].candidate,
        num_draft_tokens=k,
        units=len({row.unit for row in rows}),
        alpha=alpha,
        alpha_empirical=_ratio(rows, "accepted", "tested"),
        tokens_per_pass=_ratio(rows, "committed", "target_passes"),
        draft_utilisation=_ratio(rows, "accepted", "drafted"),
        cost_ratio=cost.c,
        verify_cost=cost.v,
        predicted_speedup=predicted,
        speedup=speedup,
        speedup_end_to_end=_speedup(
            plain, rows, lambda row: row.prefill_seconds + row.decode_seconds, bootstrap
        ),
        engine_efficiency=speedup.value / predicted,
        tested_at=[int(count) for count in tested],
        alpha_at=[
            total / count if count else float("nan")
            for total, count in zip(_sum_lists([r.alpha_at for r in rows]), tested, strict=True)
        ],
    )


def _cost(rows: list[Measurement], plain: list[Measurement]) -> Cost:
    """Both costs from the steps of these very runs: same engine path, context and batch."""
    step = _ratio(plain, "verify_seconds", "verify_steps")
    return Cost(
        c=_ratio(rows, "draft_seconds", "draft_steps") / step,
        v=_ratio(rows, "verify_seconds", "verify_steps") / step,
    )


def _speedup(
    plain: list[Measurement],
    rows: list[Measurement],
    seconds: Callable[[Measurement], float],
    bootstrap: Bootstrap,
) -> Interval:
    """Time per token of plain decoding over the arm's: sampled lengths differ between the two."""

    def sums(arm: list[Measurement]) -> Sums:
        return Sums.of(arm, lambda row: row.unit, seconds, lambda row: row.committed)

    return paired_ratio(sums(plain), sums(rows), bootstrap)


def _same_units(plain: list[Measurement], rows: list[Measurement]) -> list[Measurement]:
    """An arm that left the race early is compared on the prompts it decoded."""
    units = {row.unit for row in rows}
    return [row for row in plain if row.unit in units]


def _over_prompts(
    rows: list[Measurement], numerator: str, denominator: str, bootstrap: Bootstrap
) -> Interval:
    sums = Sums.of(
        rows,
        lambda row: row.prompt_id,
        lambda row: getattr(row, numerator),
        lambda row: getattr(row, denominator),
    )
    return pooled_ratio(sums, bootstrap)


def _ratio(rows: list[Measurement], numerator: str, denominator: str) -> float:
    total = sum(getattr(row, denominator) for row in rows)
    return sum(getattr(row, numerator) for row in rows) / total if total else float("nan")


def _sum_lists(lists: Sequence[Sequence[float]]) -> list[float]:
    longest = max(map(len, lists))
    return [sum(values[i] for values in lists if i < len(values)) for i in range(longest)]
