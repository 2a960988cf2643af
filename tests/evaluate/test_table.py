"""What is made of the rows: pooled words of the design, the champion and the verdict."""

from dataclasses import replace

import pytest

from distill.errors import UserError
from distill.evaluate.conclusion import Bar, conclude
from distill.evaluate.intervals import Interval
from distill.evaluate.pooling import Part, over_independent_units
from distill.evaluate.records import LOOKUP
from distill.evaluate.table import champion, fastest, tabulate
from distill.evaluate.verdict import DO_NOT_SHIP, NOT_ENOUGH, SHIP, judge

NEVER = Interval(0.1, 0.1, 0.1)
"""Of decoding alone, which no floor is about."""


def test_hand_worked_line(measurement) -> None:
    # mask [1, 0, 1, 1] tests 2 and accepts 1; a round with all four accepted commits 5
    one = measurement(
        "a", "d", 4, committed=7, passes=2, seconds=5.0, draft_seconds=2.0,
        tested=[2, 2, 1, 1], accepted=[2, 1, 1, 1], alpha=0.75,
    )  # fmt: skip
    plain = measurement("a", committed=10, passes=10, seconds=10.0)
    (line,) = tabulate([one, plain])
    assert line.alpha.value == pytest.approx(0.75)
    assert line.alpha_empirical == pytest.approx(5 / 6)
    assert line.tokens_per_pass == pytest.approx(3.5)
    assert line.draft_utilisation == pytest.approx(5 / 8)
    assert line.cost_ratio == pytest.approx(0.25)  # 2 s over 8 steps, a target step is 1 s
    assert line.verify_cost == pytest.approx(1.5)  # 3 s over 2 passes
    assert line.speedup.value == pytest.approx(1.0 / (5 / 7))
    # 1 + .75 + .75² + .75³ + .75⁴ tokens a round that takes 1.5 + 4 · 0.25 target steps
    assert line.predicted_speedup == pytest.approx(3.05078125 / 2.5)
    assert line.engine_efficiency == pytest.approx(1.4 / (3.05078125 / 2.5))
    assert line.speedup_end_to_end.value == pytest.approx((10.1 / 10) / (5.1 / 7))
    assert line.tested_at == [2, 2, 1, 1]
    assert line.alpha_at == pytest.approx([0.75] * 4)


def test_hand_worked_line_of_rounds_that_end_by_confidence(measurement) -> None:
    # 4 passes drafted 6 tokens and tested 5 of them: 1 + 0.6 · 5/4 tokens are to be expected
    one = measurement(
        "a", "d", 2, committed=7, passes=4, seconds=8.0, draft_seconds=3.0,
        tested=[4, 1], accepted=[2, 1], alpha=0.6,
    )  # fmt: skip
    one = replace(one, draft_steps=6, drafted=6, confidence_threshold=0.3)
    plain = measurement("a", committed=10, passes=10, seconds=10.0)
    (line,) = tabulate([one, plain])
    assert line.confidence_threshold == 0.3
    assert line.expected_tokens == pytest.approx(1.75)
    assert line.drafts_per_pass == pytest.approx(1.5)
    # a draft step is 0.5 and a pass 5/4 of a target step
    assert line.predicted_speedup == pytest.approx(1.75 / (1.25 + 1.5 * 0.5))
    assert line.predicted_v1 == pytest.approx(1.75 / (1 + 1.5 * 0.5))
    assert line.speedup.value == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("k", "tokens", "used"), [(2, 2.44, 0.72), (4, 3.3616, 0.5904), (8, 4.329, 0.416)]
)
def test_alpha_holds_over_k_while_utilisation_falls(simulated, k, tokens, used) -> None:
    (line,) = tabulate(simulated(200, k, 0.8, 0.05))
    assert line.alpha_empirical == pytest.approx(0.8, abs=0.01)
    assert line.tokens_per_pass == pytest.approx(tokens, abs=0.05)
    assert line.draft_utilisation == pytest.approx(used, abs=0.01)
    assert line.engine_efficiency == pytest.approx(1.0, abs=0.02)


def test_order_of_prompts_changes_nothing(simulated) -> None:
    rows = simulated(20, 3, 0.6, 0.1)
    assert tabulate(rows) == tabulate(rows[::-1])


def test_held_out_rows_decide_between_equals_only(measurement) -> None:
    """Seconds for 60 tokens on two prompts: a and b trade places, c is slower on both."""
    seconds = {"a": (1.0, 1.2), "b": (1.1, 1.15), "c": (3.0, 3.0)}
    rows = [measurement(prompt, seconds=4.0) for prompt in "xy"]
    for name, times in seconds.items():
        pairs = zip("xy", times, strict=True)
        rows += [measurement(prompt, name, 2, passes=30, seconds=one) for prompt, one in pairs]
    table = tabulate(rows)
    best = fastest(table)
    other = {"a": "b", "b": "a"}[best.candidate]

    def named(**held_out: float) -> str:
        return champion(table, rows, held_out).candidate

    assert named(**{best.candidate: 0.4, other: 0.5, "c": 0.9}) == other
    assert named(**{best.candidate: 0.5, other: 0.4, "c": 0.9}) == best.candidate
    assert named(**{other: 0.5}) == best.candidate  # it cannot be compared
    assert named() == best.candidate


def test_fastest_is_the_highest_lower_bound_then_alpha(simulated) -> None:
    (line,) = tabulate(simulated(10, 2, 0.6, 0.1))
    sure = replace(line, candidate="sure", speedup_end_to_end=Interval(1.2, 1.15, 1.25))
    lucky = replace(line, candidate="lucky", speedup_end_to_end=Interval(1.4, 1.0, 1.8))
    better = replace(sure, candidate="better", alpha=Interval(0.9, 0.8, 1.0))
    assert fastest([lucky, sure]).candidate == "sure"
    assert fastest([sure, better, lucky]).candidate == "better"


def test_the_untrained_baseline_is_shown_and_never_chosen(measurement) -> None:
    rows = [measurement(prompt, seconds=4.0) for prompt in "vwxyz"]
    for name, seconds in (("draft", 2.0), (LOOKUP, 1.0)):
        rows += [measurement(prompt, name, 2, passes=30, seconds=seconds) for prompt in "vwxyz"]
    found = conclude(rows, Bar())
    assert {row.candidate for row in found.table} == {"draft", LOOKUP}
    assert found.champion.candidate == "draft"
    assert "this draft does not beat it" in found.verdict.reason
    slower = [replace(r, decode_seconds=3.0) if r.candidate == LOOKUP else r for r in rows]
    assert "prompt lookup" not in conclude(slower, Bar()).verdict.reason
    assert champion(tabulate(rows), rows, {"draft": 0.5, LOOKUP: 0.9}).candidate == "draft"


def test_verdicts(simulated) -> None:
    good = tabulate(simulated(30, 2, 0.8, 0.05))
    verdict = judge(good[0], good, 1.0)
    assert verdict.decision == SHIP
    assert "as fast" in verdict.reason
    assert judge(good[0], good, 3.0).decision == DO_NOT_SHIP
    wide = replace(good[0], speedup_end_to_end=Interval(1.1, 0.9, 1.3, 0.09))
    assert judge(wide, [wide], 1.0).decision == NOT_ENOUGH
    random = tabulate(simulated(30, 2, 0.01, 0.05))
    assert judge(random[0], random, 1.0).decision == DO_NOT_SHIP


def test_best_k_is_of_the_champions_costs_at_its_alpha(simulated) -> None:
    """At alpha 0.8 and c = 0.05: 1.8/1.05, 2.44/1.1, 3.36/1.2; k = 8 is another draft's."""
    rows = {
        (row.arm, row.unit): row
        for k, name in ((1, "d"), (2, "d"), (4, "d"), (8, "free"))
        for row in simulated(30, k, 0.8, 0.05 if name == "d" else 0.0, candidate=name)
    }
    table = tabulate(list(rows.values()))
    assert judge(table[0], table, 1.0).best_k == 4


@pytest.mark.parametrize(
    ("low", "high", "units", "decision"),
    [
        (1.3, 1.5, 9, SHIP),
        (0.9, 1.2, 9, DO_NOT_SHIP),
        (1.1, 1.5, 9, NOT_ENOUGH),
        (1.3, 1.5, 4, NOT_ENOUGH),
    ],
)
def test_a_floor_is_judged_like_the_margin(simulated, low, high, units, decision) -> None:
    good = tabulate(simulated(30, 2, 0.8, 0.05))
    part = Part("code", units, units, good[0].alpha, NEVER, Interval(1.2, low, high), 2.0)
    verdict = judge(good[0], good, 1.0, {"code": 1.2, "math": 5.0}, [part])
    assert verdict.decision == decision
    assert ("in code" in verdict.reason) == (decision != SHIP)


def test_a_missed_margin_is_not_saved_by_floors(simulated) -> None:
    good = tabulate(simulated(30, 2, 0.8, 0.05))
    part = Part("code", 9, 9, good[0].alpha, NEVER, Interval(2.0, 1.9, 2.1), 2.0)
    assert judge(good[0], good, 3.0, {"code": 1.0}, [part]).decision == DO_NOT_SHIP


def test_two_timed_batches_are_no_evidence_and_more_are_asked_for(simulated) -> None:
    few = tabulate(simulated(2, 2, 0.9, 0.05))
    verdict = judge(few[0], few, 1.0)
    assert verdict.decision == NOT_ENOUGH
    assert verdict.more_units is not None
    assert verdict.more_units >= 3
    assert f"about {verdict.more_units} more independent prompts" in verdict.reason


def test_what_a_user_waits_for_is_judged_and_decoding_alone_where_asked(simulated) -> None:
    good = tabulate(simulated(30, 2, 0.8, 0.05))
    slow_prompts = replace(good[0], speedup_end_to_end=Interval(0.9, 0.8, 0.95))
    assert judge(slow_prompts, good, 1.0).decision == DO_NOT_SHIP
    assert "decoding alone it is" in judge(slow_prompts, good, 1.0).reason
    assert judge(good[0], good, 1.0, decoding_margin=1.5).decision == SHIP
    assert judge(good[0], good, 1.0, decoding_margin=9.0).decision == DO_NOT_SHIP


def test_under_a_threshold_break_even_stands_beside_the_alpha_of_first_drafts(simulated) -> None:
    (line,) = tabulate(simulated(30, 2, 0.8, 0.05))
    unsure = replace(line, confidence_threshold=0.3, alpha_at=[0.4, 0.9])
    assert "the alpha of first drafts is 0.40" in judge(unsure, [unsure], 1.0).reason


def test_windows_of_one_file_are_one_unit(measurement) -> None:
    names = ["m.py@0", "m.py@96", "other.py@0"]
    rows = [measurement(name) for name in names] + [
        measurement(n, "d", 1, tested=[60]) for n in names
    ]
    pooled = over_independent_units(rows)
    assert {row.unit for row in pooled} == {"m.py@0", "other.py@0"}
    (line,) = tabulate(pooled)
    assert line.units == 2


def test_break_even_and_its_absence_are_said(simulated) -> None:
    cheap = tabulate(simulated(10, 1, 0.5, 0.2))
    verdict = judge(cheap[0], cheap, 1.0)
    assert verdict.break_even is not None
    assert verdict.break_even.alpha == pytest.approx(0.2, abs=1e-6)
    dear = tabulate(simulated(10, 1, 0.99, 1.5))
    assert "not even a perfect draft" in judge(dear[0], dear, 1.0).reason


def test_what_cannot_be_tabulated(simulated) -> None:
    rows = simulated(3, 2, 0.5, 0.1)
    with pytest.raises(UserError, match="no plain decoding"):
        tabulate([row for row in rows if row.num_draft_tokens])
    with pytest.raises(UserError, match="one sampling setting"):
        tabulate([*rows, replace(rows[0], sampling="greedy")])
    with pytest.raises(UserError, match="no candidate"):
        fastest([])
