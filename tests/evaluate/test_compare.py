"""Two evaluations side by side: the same prompts only, differences paired."""

from dataclasses import replace

import pytest

from distill.errors import UserError
from distill.evaluate.compare import Side, compare
from distill.evaluate.intervals import Interval, ratio
from distill.evaluate.report.comparison import render_comparison
from distill.evaluate.report.tables import as_text, comparison_table
from distill.evaluate.statistics import Sums, paired


def side(name, rows, draft="draft", k=2, target="t", batch_size=1):
    load = {"sampling": "T=1", "batch_size": batch_size, "draft": draft, "num_draft_tokens": k}
    evaluation = {"target": {"id": target, "weights_sha256": target}, "loads": [load]}
    return Side(name, evaluation, rows)


def faster(rows, factor):
    """Every speculative decoding in so much less time."""
    return [
        replace(row, decode_seconds=row.decode_seconds / factor) if row.num_draft_tokens else row
        for row in rows
    ]


def test_an_evaluation_beside_itself_shows_no_difference(simulated) -> None:
    rows = simulated(8, 2, 0.6, 0.1)
    (load,) = compare(side("a", rows), side("b", rows[::-1])).loads
    assert (load.alpha_change.low, load.alpha_change.high) == (0.0, 0.0)
    assert (load.speedup_ratio.low, load.speedup_ratio.high) == (1.0, 1.0)
    assert (load.turns, load.first.dropped, load.second.dropped) == (8, 0, 0)
    assert load.first == load.second


def test_a_draft_of_half_the_time_is_twice_as_fast_to_the_digit(simulated) -> None:
    """Paired: the prompts' own spread cancels."""
    rows = simulated(8, 2, 0.6, 0.1)
    (load,) = compare(side("a", rows), side("b", faster(rows, 2.0))).loads
    assert load.speedup_ratio.value == pytest.approx(2.0)
    assert load.speedup_ratio.low == pytest.approx(2.0)
    assert load.first.speedup.high - load.first.speedup.low > 0.01
    assert load.second.speedup.value == pytest.approx(2 * load.first.speedup.value)


def test_only_the_champions_arm_counts(simulated) -> None:
    """Another k and another candidate of the same prompts change nothing."""
    rows = simulated(8, 2, 0.6, 0.1)
    others = [*simulated(8, 3, 0.1, 0.5, candidate="draft"), *simulated(8, 2, 0.2, 0.5, 0, "other")]
    more = [*rows, *(row for row in others if row.num_draft_tokens)]
    (alone,) = compare(side("a", rows), side("b", rows)).loads
    (load,) = compare(side("a", more), side("b", rows)).loads
    assert load == alone


def test_changes_are_second_less_first(simulated) -> None:
    worse, better = simulated(30, 2, 0.4, 0.1), simulated(30, 2, 0.7, 0.1)
    (load,) = compare(side("a", worse), side("b", better)).loads
    assert load.alpha_change.value == pytest.approx(0.3)
    expected = load.second.tokens_per_pass.value - load.first.tokens_per_pass.value
    assert load.tokens_per_pass_change.value == pytest.approx(expected)
    assert load.tokens_per_pass_change.low > 0


def test_only_common_prompts_count_and_the_others_are_counted(simulated) -> None:
    rows = simulated(8, 2, 0.6, 0.1)
    slow = [row for row in rows if row.prompt_id != "p000"]
    odd = [
        replace(row, decode_seconds=1e6) if row.prompt_id == "p001" else row
        for row in rows
        if row.prompt_id not in ("p002", "p003")
    ]
    odd = [replace(row, prompt_tokens=99) if row.prompt_id == "p001" else row for row in odd]
    (load,) = compare(side("a", slow), side("b", odd)).loads
    # a has p001…p007; b lacks p002 and p003, and its p001 is another prompt of that name.
    assert (load.turns, load.first.dropped, load.second.dropped) == (4, 3, 2)
    assert load.speedup_ratio.value == pytest.approx(1.0)


def test_batches_of_other_prompts_share_no_clock(simulated) -> None:
    """p001 was timed with p000 in one and with p002 in the other."""
    rows = [replace(row, batch_size=2) for row in simulated(6, 2, 0.6, 0.1)]

    def batched(groups):
        unit = {f"p{i:03d}": f"p{group[0]:03d}" for group in groups for i in group}
        return [replace(row, unit=unit[row.prompt_id]) for row in rows]

    first = side("a", batched([(0, 1), (2, 3), (4, 5)]), batch_size=2)
    second = side("b", batched([(0, 3), (2, 1), (4, 5)]), batch_size=2)
    (load,) = compare(first, second).loads
    assert (load.turns, load.first.dropped) == (2, 4)


def test_what_cannot_be_compared_is_refused(simulated) -> None:
    rows = simulated(4, 2, 0.6, 0.1)
    renamed = [replace(row, prompt_id=f"x{row.prompt_id}", unit=f"x{row.unit}") for row in rows]
    with pytest.raises(UserError, match="no prompt in common"):
        compare(side("a", rows), side("b", renamed))
    with pytest.raises(UserError, match="target"):
        compare(side("a", rows), side("b", rows, target="u"))
    with pytest.raises(UserError, match="no load is in both"):
        compare(side("a", rows), side("b", rows, batch_size=2))


def test_page_and_table_say_which_is_faster(simulated) -> None:
    rows = simulated(8, 2, 0.6, 0.1)
    found = compare(side("one", rows), side("two", faster(rows, 2.0)))
    text, html = as_text(comparison_table(found)), render_comparison(found)
    assert "B is faster" in text
    assert "2.00 [2.00, 2.00]" in text
    assert "8 (0, 0)" in text
    assert "B is faster" in html
    assert html.count("<svg role=") == 2
    assert "<script" not in html
    (load,) = found.loads
    assert replace(load, speedup_ratio=Interval(1.0, 0.9, 1.1)).conclusion == "undecided"
    assert replace(load, speedup_ratio=Interval(0.85, 0.8, 0.9)).conclusion == "A is faster"


def test_any_statistic_of_arms_that_are_resampled_together() -> None:
    arms = [Sums({"p": (n, 1.0), "q": (n, 1.0)}) for n in (2.0, 3.0, 6.0)]
    found = paired(arms, lambda s: ratio(s)[..., :1] * ratio(s)[..., 1:2] / ratio(s)[..., 2:])
    assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
    with pytest.raises(UserError, match="the same prompts"):
        paired([*arms, Sums({"p": (1.0, 1.0)})], ratio)
