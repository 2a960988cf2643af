"""The JSON that reports are drawn from, by hand-worked numbers."""

import json
from dataclasses import replace

import pytest

from distill.evaluate.candidates import HeldOutScores
from distill.evaluate.conclusion import Bar, conclude
from distill.evaluate.correlation import correlate
from distill.evaluate.intervals import Interval
from distill.evaluate.load import Load
from distill.evaluate.outcome import Considered, Evaluation, Outcome
from distill.evaluate.report.tables import as_text, correlations_table, load_text
from distill.evaluate.table import tabulate
from distill.speculative.prediction import Cost, predicted_speedup
from distill.speculative.sampling import Sampling

LOADS = [Load(Sampling(temperature=t), 8, (), 1, 40, 0) for t in (1.0, 0.0)]


@pytest.fixture
def rows(simulated):
    """One draft at k = 1 and 2 over ten code and ten chat prompts; v = 1.2."""
    found = {}
    for k in (1, 2):
        for row in simulated(20, k, 0.6, 0.1, candidate="d"):
            domain = "chat" if row.prompt_id < "p010" else "code"
            seconds = row.verify_seconds * (1.2 if row.num_draft_tokens else 1.0)
            row = replace(row, domain=domain, verify_seconds=seconds)
            found.setdefault((row.arm, row.unit), row)
    return list(found.values())


@pytest.fixture
def evaluation(rows):
    considered = [
        Considered("d", "abc", 100, 5000, HeldOutScores(0.5, 0.6, 0.7)),
        Considered("screened", "def", 100, None, None),
    ]
    conclusion = conclude(rows, Bar(1.0, {"chat": 0.5, "code": 9.0}))
    return Evaluation(
        loads=[(load, conclusion) for load in LOADS],
        considered=considered,
        prompts={"conversations": 20, "turns": 24},
        target={"parameters": 1000},
    )


def test_the_first_load_stands_on_top(evaluation) -> None:
    found = evaluation.as_json()
    first, second = found["loads"]
    assert (first["sampling"], second["sampling"]) == ("T=1", "greedy")
    assert {key: found[key] for key in first if key in found} == {
        key: value for key, value in first.items() if key in found
    }
    assert (found["draft_weights_sha256"], found["parameter_ratio"]) == ("abc", 0.1)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_parts_and_floors(evaluation) -> None:
    first = evaluation.as_json()["loads"][0]
    assert [(part["name"], part["prompts"]) for part in first["domains"]] == [
        ("chat", 10), ("code", 10),
    ]  # fmt: skip
    assert [part["name"] for part in first["buckets"]] == ["≤256"]
    assert [(floor["domain"], floor["decision"]) for floor in first["floors"]] == [
        ("chat", "ship"), ("code", "do not ship"),
    ]  # fmt: skip
    assert first["verdict"] == "do not ship"
    assert "in code it is" in first["reason"]
    assert "under its floor of 9" in first["reason"]
    assert "in chat" not in first["reason"]


def test_calibration_is_both_formulas_beside_the_measured(evaluation) -> None:
    lines = evaluation.as_json()["calibration"]
    assert [(line["sampling"], line["num_draft_tokens"]) for line in lines] == [
        ("T=1", 1), ("T=1", 2), ("greedy", 1), ("greedy", 2),
    ]  # fmt: skip
    for line in lines:
        alpha, k = line["alpha"], line["num_draft_tokens"]
        cost = Cost(line["cost_ratio"], line["verify_cost"])
        assert cost.v == pytest.approx(1.2)
        assert line["predicted_v1"] == pytest.approx(predicted_speedup(alpha, k, Cost(cost.c)))
        assert line["predicted"] == pytest.approx(predicted_speedup(alpha, k, cost))
        assert line["efficiency"] == pytest.approx(line["measured"]["value"] / line["predicted"])


def test_who_was_screened_out_is_listed(evaluation) -> None:
    found = evaluation.as_json()
    assert [(one["name"], one["decoded"]) for one in found["candidates"]] == [
        ("d", True), ("screened", False),
    ]  # fmt: skip


def test_what_other_stages_read_is_the_first_loads_champion(evaluation) -> None:
    found = evaluation.as_json()
    outcome = Outcome.from_json(json.loads(json.dumps(found)))
    first = found["loads"][0]
    names = ("draft", "num_draft_tokens", "alpha", "speedup_low", "verdict")
    assert {name: getattr(outcome, name) for name in names} == {name: first[name] for name in names}
    assert (outcome.draft_weights_sha256, outcome.turns) == ("abc", 24)


def test_nothing_tested_is_null_not_nan(evaluation, rows) -> None:
    bare = [
        replace(row, tested=0, accepted=0, alpha_sum=0.0, tested_at=[0] * row.num_draft_tokens)
        for row in rows
    ]
    loads = [(LOADS[0], conclude(bare, Bar()))]
    found = replace(evaluation, loads=loads).as_json()
    assert found["alpha"] is found["best_k"] is found["break_even_alpha"] is None
    assert "no drafted token was tested" in found["reason"]
    assert found["table"][0]["alpha"] == {"value": None, "low": None, "high": None, "error": None}
    json.dumps(found, allow_nan=False)


def test_correlations_by_hand(rows) -> None:
    # ranks of alpha 1 2 3; of KL 3 2 1; of agreement 1 3 2: Spearman 1 − 6·2/(3·8) = 0.5
    (line, _) = tabulate(rows)
    table = [
        replace(line, candidate=name, alpha=Interval(a, a, a), speedup=Interval(s, s, s))
        for name, a, s in (("x", 0.2, 1.0), ("y", 0.3, 1.2), ("z", 0.9, 1.1))
    ]
    held_out = {
        "x": HeldOutScores(0.9, 0.25, 0.1),
        "y": HeldOutScores(0.8, 0.35, 0.3),
        "z": HeldOutScores(0.7, 0.95, 0.2),
    }
    assert correlate(table[:2], held_out) is None
    found = correlate(table, held_out)
    assert found is not None
    by = {(one.proxy, one.measured): one for one in found.correlations}
    assert by["kl", "alpha"].spearman == pytest.approx(-1)
    assert by["teacher_forced_alpha", "alpha"].pearson == pytest.approx(1)
    assert by["agreement", "alpha"].spearman == pytest.approx(0.5)
    assert by["agreement", "speedup"].pearson == pytest.approx(1)


def test_a_constant_proxy_says_nothing(rows) -> None:
    (line, _) = tabulate(rows)
    table = [replace(line, candidate=name) for name in "xyz"]
    found = correlate(table, dict.fromkeys("xyz", HeldOutScores(0.5, 0.5, 0.5)))
    assert found is not None
    assert all(one.pearson != one.pearson for one in found.correlations)


def test_what_is_printed(evaluation) -> None:
    text = "".join(load_text(load, conclusion) for load, conclusion in evaluation.loads)
    assert text.count("verdict:") == 2
    assert "★ by domain" in text
    assert "★ by context" not in text  # one bucket says nothing new
    correlation = {
        "proxy": "kl", "measured": "alpha", "spearman": None, "pearson": -0.9, "candidates": 3,
    }  # fmt: skip
    shown = as_text(correlations_table({"num_draft_tokens": 2, "correlations": [correlation]}))
    assert "validation KL" in shown
    assert "-0.90" in shown
