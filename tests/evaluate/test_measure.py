"""The whole evaluation on tiny models: counted, interleaved, resumed. Times are not judged."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from distill.errors import UserError
from distill.evaluate import measure
from distill.evaluate.conclusion import Bar, Conclusion, conclude
from distill.evaluate.measure import Grid, measure_candidates
from distill.evaluate.records import LOOKUP, PLAIN, Prompt, read_rows, write_rows
from distill.speculative.decode import decode
from distill.speculative.lookup import PromptLookup
from distill.speculative.sampling import Sampling
from tests.evaluate.conftest import tiny
from tests.tiny import tiny_head

V = 40


PROMPTS = [
    Prompt(f"p{i}", "code" if i % 2 else "chat", [1 + i, 5, 9, 2][: 2 + i % 3]) for i in range(6)
]


def evaluate_all(folder: Path, candidates=None, prompts=PROMPTS, **changes) -> list[Conclusion]:
    grid = Grid(
        **{
            "num_draft_tokens": [1, 3],
            "samplings": [Sampling()],
            "batch_sizes": [1],
            "max_new_tokens": 10,
            "eos_token_ids": (),
            "vocabulary_size": V,
            "seed": 3,
        }
        | changes
    )
    rows = measure_candidates(
        tiny(0),
        candidates or {"d": tiny(1)},
        prompts,
        grid,
        folder,
    )
    return [conclude([row for row in rows if load.of(row)], Bar()) for load in grid.loads()]


def evaluate(folder: Path, candidates=None, prompts=PROMPTS, **changes) -> Conclusion:
    """At one load."""
    for one, many in (("sampling", "samplings"), ("batch_size", "batch_sizes")):
        if one in changes:
            changes[many] = [changes.pop(one)]
    if "ks" in changes:
        changes["num_draft_tokens"] = changes.pop("ks")
    (found,) = evaluate_all(folder, candidates, prompts, **changes)
    return found


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0), Sampling(temperature=0.7, top_p=0.8)]
)
def test_copy_of_the_target_has_alpha_one(
    tmp_path: Path, sampling: Sampling, batch_size: int
) -> None:
    found = evaluate(tmp_path, {"copy": tiny(0)}, sampling=sampling, batch_size=batch_size)
    for line in found.table:
        assert line.alpha.value == pytest.approx(1.0, abs=1e-5)
        assert line.alpha_empirical == pytest.approx(1.0, abs=0.02)


def test_kinds_of_draft_are_measured_side_by_side(tmp_path: Path) -> None:
    target = tiny(0, num_hidden_layers=6)
    candidates = {
        "draft": tiny(1),
        "head": tiny_head(torch.arange(0, V, 2), max_position_embeddings=2048),
        "lookup": PromptLookup(),
    }
    grid = Grid([2], [Sampling(), Sampling(temperature=0)], [1, 4], 10, (), V, seed=3)
    rows = measure_candidates(target, candidates, PROMPTS, grid, tmp_path)
    for load in grid.loads():
        found = [row for row in rows if load.of(row)]
        assert {row.candidate for row in found} == {PLAIN, *candidates}
        assert {row.committed for row in found} == {10}


def test_every_prompt_is_counted_once_per_arm_and_repetition(tmp_path: Path) -> None:
    found = evaluate(tmp_path, batch_size=3)
    write_rows(tmp_path / "measurements.parquet", found.rows)
    frame = pd.read_parquet(tmp_path / "measurements.parquet")
    counts = frame.groupby(["candidate", "num_draft_tokens", "repetition"])["prompt_id"].agg(list)
    assert len(counts) == 3 * measure.REPETITIONS
    assert all(sorted(ids) == sorted(p.id for p in PROMPTS) for ids in counts)
    assert read_rows(tmp_path / "measurements.parquet") == found.rows


def test_batching_changes_neither_tokens_nor_alpha(tmp_path: Path) -> None:
    one, many = evaluate(tmp_path / "1"), evaluate(tmp_path / "3", batch_size=3)
    for a, b in zip(one.table, many.table, strict=True):
        assert a.tokens_per_pass == b.tokens_per_pass
        assert a.alpha.value == pytest.approx(b.alpha.value, abs=1e-5)


def test_k_is_the_most_where_rounds_end_by_confidence(tmp_path: Path) -> None:
    fixed, ended = evaluate(tmp_path / "0"), evaluate(tmp_path / "1", confidence_threshold=1.0)
    assert {row.confidence_threshold for row in ended.rows} == {1.0}
    assert ended.summary()["confidence_threshold"] == 1.0
    assert all(row.drafted <= row.target_passes for row in ended.rows)
    longest = [row for row in fixed.rows if row.num_draft_tokens == 3]
    assert sum(row.drafted for row in longest) > sum(row.target_passes for row in longest)


def test_measurements_of_before_the_threshold_are_read(tmp_path: Path) -> None:
    found = evaluate(tmp_path)
    write_rows(tmp_path / "new.parquet", found.rows)
    pd.read_parquet(tmp_path / "new.parquet").drop(columns="confidence_threshold").to_parquet(
        tmp_path / "old.parquet"
    )
    assert read_rows(tmp_path / "old.parquet") == found.rows


def test_arms_are_interleaved_forward_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def spy(target, prompts, **settings):
        calls.append(settings["num_draft_tokens"] if settings["max_new_tokens"] == 30 else -1)
        return decode(target, prompts, **settings)

    monkeypatch.setattr(measure, "decode", spy)
    evaluate(tmp_path, max_new_tokens=30, prompts=PROMPTS[:2])
    timed = [k for k in calls if k >= 0]
    assert calls[:3] == [-1, -1, -1]  # every arm is warmed up before the first is timed
    assert timed == [0, 1, 3, 3, 1, 0, 1, 3, 0, 0, 3, 1]


def test_a_kill_loses_one_batch_and_counts_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = measure._measure_unit

    def killed(*arguments):
        rows = real(*arguments)
        if len(list(tmp_path.glob("load-00/batch-*.parquet"))) == 3:
            raise KeyboardInterrupt
        return rows

    monkeypatch.setattr(measure, "_measure_unit", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path)
    monkeypatch.undo()
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("load-00/batch-*.parquet")}
    assert len(kept) == 3
    resumed = evaluate(tmp_path)
    for name, written in kept.items():
        assert (tmp_path / "load-00" / name).stat().st_mtime_ns == written
    whole = evaluate(tmp_path / "whole")
    assert [row.key for row in resumed.rows] == [row.key for row in whole.rows]
    assert [r.tokens_per_pass for r in resumed.table] == [r.tokens_per_pass for r in whole.table]


def test_another_setting_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    evaluate(tmp_path, prompts=PROMPTS[:2])
    with pytest.raises(UserError, match="another setting"):
        evaluate(tmp_path, prompts=PROMPTS[:2], max_new_tokens=5)


def test_end_token_inside_an_accepted_block_cuts_the_count(tmp_path: Path) -> None:
    copy, greedy = {"copy": tiny(0)}, Sampling(temperature=0)
    out = decode(tiny(0), [PROMPTS[0].tokens], sampling=greedy, max_new_tokens=10).tokens[0]
    stop = next(i for i in range(2, 10) if out[i] not in out[:i])
    found = evaluate(
        tmp_path, copy, PROMPTS[:1], ks=[9], sampling=greedy, eos_token_ids=(out[stop],)
    )
    drafted = [row for row in found.rows if row.candidate == "copy"]
    assert {row.committed for row in found.rows} == {stop + 1}
    assert {row.target_passes for row in drafted} == {1}
    assert {row.accepted for row in drafted} == {stop + 1}
    assert {row.finish_reason for row in found.rows} == {"eos"}


def test_summary_is_flat_json_with_the_promised_keys(tmp_path: Path) -> None:
    summary = evaluate(tmp_path).summary()
    promised = (
        "alpha alpha_low alpha_high alpha_empirical tokens_per_pass cost_ratio num_draft_tokens "
        "speedup speedup_low speedup_high predicted_speedup engine_efficiency verdict"
    )
    assert set(promised.split()) <= set(summary)
    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"ks": []}, "at least one k"),
        ({"ks": [2, 0]}, "at least one k"),
        ({"prompts": []}, "no prompts are left"),
        ({"prompts": [PROMPTS[0], PROMPTS[0]]}, "'p0' comes twice"),
        ({"max_new_tokens": 0}, "at least 1"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, changes: dict, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        evaluate(tmp_path, **changes)


def test_settings_are_named_by_what_differs() -> None:
    assert Sampling().name == "T=1"
    assert Sampling(temperature=0, top_k=5).name == "greedy"
    penalised = Sampling(temperature=1e-6, top_p=0.9, repetition_penalty=1.2)
    assert penalised.name == "greedy repetition_penalty=1.2"
    assert Sampling(temperature=0.7, top_p=0.9).name == "T=0.7 top_p=0.9"


def test_the_untrained_baseline_is_measured_once_at_the_largest_k(tmp_path: Path) -> None:
    grid = Grid([1, 3], [Sampling()], [1], 10, (), V, seed=3, prompt_lookup=True)
    rows = measure_candidates(tiny(0), {"d": tiny(1)}, PROMPTS, grid, tmp_path)
    arms = {(row.candidate, row.num_draft_tokens) for row in rows}
    assert arms == {(PLAIN, 0), ("d", 1), ("d", 3), (LOOKUP, 3)}


@pytest.mark.parametrize("name", [PLAIN, LOOKUP])
def test_a_candidate_cannot_take_a_baselines_name(tmp_path: Path, name: str) -> None:
    grid = Grid([1], [Sampling()], [1], 10, (), V, seed=3)
    with pytest.raises(UserError, match="is the name of a baseline"):
        measure_candidates(tiny(0), {name: tiny(1)}, PROMPTS, grid, tmp_path)
