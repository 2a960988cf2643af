"""What the drawings say in words, and what is drawn at all."""

import json

from distill.evaluate.report import acceptance_plots, speed_plots, training_plots
from distill.evaluate.report.drawing import own_ids
from distill.evaluate.report.facts import Curve, Training


def test_words_hold_the_numbers(facts) -> None:
    evaluation = facts(batch_sizes=(1, 4)).evaluation
    first = evaluation["table"][0]
    plot = speed_plots.speedup_by_k(evaluation, evaluation["loads"])
    assert f"T=1, 1 at a time: k = 1 {first['speedup']['value']:.2f}, k = 2 " in plot.alt
    assert "code" in acceptance_plots.alpha_by_domain(evaluation).alt
    assert f"{first['tokens_per_pass']:.2f}" in acceptance_plots.tokens_by_k(evaluation).alt


def interval(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.1, "high": value + 0.1}


LOADS = [
    {"sampling": name, "batch_size": size, "draft": "d", "num_draft_tokens": 2}
    | {"speedup": speedup, "speedup_low": 1.0, "speedup_high": 2.0}
    for name, size, speedup in (("T=1", 1, 1.31), ("T=1", 8, 1.02), ("greedy", 1, 1.47))
]


def arms(candidate: str, alphas: list[float]) -> list[dict]:
    """At k = 1 and 2 of every load; the second load's are 0.1 lower."""
    return [
        {"sampling": load["sampling"], "batch_size": load["batch_size"], "candidate": candidate}
        | {"num_draft_tokens": k, "alpha": interval(alphas[k - 1] - 0.1 * (load is LOADS[1]))}
        | {"alpha_at": [alphas[k - 1], 0.3][:k]}
        for load in LOADS
        for k in (1, 2)
    ]


def test_words_by_hand() -> None:
    """Domains by alpha; places at the largest k; each load's speedup at its batch size."""
    parts = [
        {"name": name, "prompts": 3, "alpha": interval(alpha), "speedup": interval(1.9)}
        for name, alpha in (("chat", 0.31), ("code", 0.52), ("math", 0.47))
    ]
    evaluation = {
        "loads": LOADS, "domains": parts, "break_even_alpha": 0.2,
        "table": arms("other", [0.81, 0.82]) + arms("d", [0.61, 0.42]),
    }  # fmt: skip
    domains = acceptance_plots.alpha_by_domain(evaluation)
    assert domains.alt.endswith(": code 0.52, math 0.47, chat 0.31")
    places = acceptance_plots.alpha_by_position(evaluation)
    assert "T=1, 1 at a time: 0.42, 0.30. greedy, 1 at a time: 0.42, 0.30." in places.alt
    batches = speed_plots.speedup_by_batch(evaluation)
    assert "T=1: batch 1 1.31, batch 8 1.02. greedy: batch 1 1.47." in batches.alt


def test_decoded_alpha_by_tokens_is_at_the_champions_k_and_load() -> None:
    names = {"early": 1000, "d": 5000, "elsewhere": None}
    evaluation = {
        "loads": LOADS,
        "table": [
            *arms("early", [0.5, 0.33]),
            *arms("d", [0.61, 0.42]),
            *arms("elsewhere", [1, 1]),
        ],
        "candidates": [{"name": name, "tokens": tokens} for name, tokens in names.items()],
    }
    alt = training_plots.alpha_by_tokens(evaluation, Training()).alt
    assert alt == ("Alpha of the checkpoints. decoded in evaluation: 0.33 at 1,000, 0.42 at 5,000.")


def test_the_same_facts_make_the_same_drawing(facts) -> None:
    first, again = (acceptance_plots.alpha_by_position(facts().evaluation) for _ in range(2))
    assert first == again


def test_times_pool_a_clock_by_its_tokens(measurement) -> None:
    # One clock of two rows: 3 s for 30 tokens; another of one row: 2 s for 10.
    rows = [
        measurement("a", committed=10, seconds=1.0),
        measurement("b", committed=20, seconds=2.0),
        measurement("c", committed=10, seconds=2.0),
    ]
    rows[1] = type(rows[1])(**{**vars(rows[1]), "unit": "a"})
    assert speed_plots._per_token(rows) == [100.0, 200.0]
    load = {"sampling": "T=1", "batch_size": 1, "draft": "d"}
    assert speed_plots.times(rows, load).alt == "Milliseconds per token, medians: plain 150.0."


def test_training_is_drawn_from_what_was_logged(facts) -> None:
    assert training_plots.curves(Training()) is None
    plot = training_plots.curves(facts().training)
    assert plot.alt == "training loss from 3.00 to 1.50."
    zero = training_plots.curves(Training({"train/loss": Curve([0.0], [2.0])}))
    assert zero is not None


def test_alpha_by_tokens_tells_three_alphas_apart(facts) -> None:
    found = facts()
    alt = training_plots.alpha_by_tokens(found.evaluation, found.training).alt
    assert "validation rows: 0.50 at 2,500, 0.60 at 5,000" in alt
    assert "decoded in training: 0.55 at 5,000" in alt
    measured = found.evaluation["alpha"]
    assert f"decoded in evaluation: {measured:.2f} at 5,000" in alt
    assert training_plots.alpha_by_tokens(found.evaluation, Training()) is None


def test_ids_are_prefixed_with_all_that_refers_to_them() -> None:
    svg = '<g id="a"/><use xlink:href="#a"/><path clip-path="url(#a)"/>'
    assert own_ids(svg, "x") == (
        '<g id="x-a"/><use xlink:href="#x-a"/><path clip-path="url(#x-a)"/>'
    )


def test_evaluation_survives_json(facts) -> None:
    evaluation = facts().evaluation
    assert speed_plots.speedup_by_k(json.loads(json.dumps(evaluation)), evaluation["loads"])
