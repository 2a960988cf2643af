"""Trainers side by side: order, rates and peaks of scripted arms."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from distill.errors import UserError
from distill.evaluate.benchmark.training import TrainingJob, alternate, same_update
from distill.evaluate.report.tables import as_text, training_table

SCRIPT = """
import json, sys, time
from pathlib import Path
folder = Path(sys.argv[-1])
with (folder.parent / "order").open("a") as order:
    order.write(sys.argv[1] + " ")
held = b"x" * ({megabytes} * 10**6)
time.sleep(0.3)
starts = [0, 1, 2, 4, 7, 11]
told = {{"starts": starts, "versions": {{"a": "1"}}}}
(folder / "run.json").write_text(json.dumps(told))
"""


@pytest.fixture
def job(tmp_path: Path) -> TrainingJob:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([[1, 2, 3, 4, 5]] * 3))
    return TrainingJob("target", "draft", str(rows), 2, 4, 2, 3, False, 96)


def scripted(tmp_path: Path, name: str, megabytes: int) -> list[str]:
    path = tmp_path / f"{name}.py"
    path.write_text(SCRIPT.format(megabytes=megabytes))
    return [sys.executable, str(path), name]


def test_runs_alternate_and_are_measured_by_hand(tmp_path, job) -> None:
    """3 steps of 4 · 2 rows with 4 tokens to learn in 11 − 2 seconds: 96/9 a second."""
    arms = {"a": scripted(tmp_path, "a", 10), "b": scripted(tmp_path, "b", 160)}
    runs = alternate(arms, job, tmp_path / "runs", 2)
    assert (tmp_path / "runs" / "order").read_text() == "a b b a a b b a "
    assert [run.tokens_per_second for run in runs["a"]] == [pytest.approx(96 / 9)] * 4
    more = runs["b"][0].peak_bytes - runs["a"][0].peak_bytes
    assert more == pytest.approx(150e6, rel=0.05)


def test_an_arm_that_fails_tells_its_last_words(tmp_path, job) -> None:
    arms = {"broken": [sys.executable, "-c", "raise SystemExit('no such trainer')"]}
    with pytest.raises(UserError, match=r"'broken' failed: no such trainer"):
        alternate(arms, job, tmp_path / "runs", 1)


def test_updates_are_compared_by_their_cosine(tmp_path) -> None:
    """(1, 0) and (1, 1) from the same start: 1/√2."""
    for name, values in (("draft", [1.0, 1.0]), ("one", [2.0, 1.0]), ("other", [2.0, 2.0])):
        folder = tmp_path / name / "trained"
        folder.mkdir(parents=True)
        save_file({"w": torch.tensor(values)}, folder / "model.safetensors")
    job = TrainingJob("", str(tmp_path / "draft" / "trained"), "", 1, 1, 1, 1, False, 96)
    found = same_update(job, tmp_path / "one", tmp_path / "other")
    assert found == pytest.approx(2**-0.5)


def test_table_by_hand() -> None:
    found = {
        "arms": {
            "live": {"rates": [30.0, 20.0], "peak_bytes": [1e9, 1e9]},
            "trl": {"rates": [10.0, 10.0], "peak_bytes": [2e9, 3e9]},
        },
        "same_update": 0.99,
    }
    text = as_text(training_table(found))
    assert "2.50×" in text
    assert "0.9900" in text
    assert "left out" in as_text(training_table({**found, "same_update": None}))
