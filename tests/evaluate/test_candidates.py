"""What candidates are called; trainings side by side by what tells them apart."""

import json
from pathlib import Path

import pytest

from distill.artifacts import MANIFEST
from distill.errors import UserError
from distill.evaluate.candidates import candidate_names, training_names


def training(folder, settings, **inputs):
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"settings": settings, "inputs": inputs}))
    return folder


def test_names_are_the_settings_that_are_not_as_in_most(tmp_path) -> None:
    usual = {"seed": 0, "draft": {"init": "pruned", "layers": None}}
    runs = [
        training(tmp_path / "a", usual, prepare="0" * 64),
        training(tmp_path / "b", {**usual, "seed": 1}, prepare="0" * 64),
        training(
            tmp_path / "c", {"seed": 1, "draft": {"init": "svd", "layers": 3}}, prepare="0" * 64
        ),
        training(tmp_path / "d", usual, prepare="1" * 64),
        training(tmp_path / "e", usual, prepare="0" * 64),
    ]
    runs.append(tmp_path / "elsewhere")
    assert list(training_names([*runs, runs[0]]).values()) == [
        "a",  # like e in everything
        "seed:1",
        "seed:1 draft.init:svd draft.layers:3",
        "prepare:111111111111",
        "e",
        "elsewhere",
    ]
    assert training_names(runs[:1]) == {runs[0]: "base"}


def test_a_label_can_name_a_metric(tmp_path) -> None:
    common = {"betas": [0.9, 0.95], "path": "a"}
    runs = [training(tmp_path / name, common) for name in "ab"]
    runs.append(training(tmp_path / "c", {"betas": [0.9, 0.99], "path": "x=1,y"}))
    assert training_names(runs)[runs[2]] == "betas:_0.9_ 0.99_ path:x_1_y"


def test_what_a_training_lacks_tells_it_apart(tmp_path) -> None:
    runs = [training(tmp_path / name, {"seed": 0}, cache="0" * 64) for name in "ab"]
    runs.append(training(tmp_path / "live", {"seed": 0}))
    assert training_names(runs[1:]) == {runs[1]: "base", runs[2]: "cache:none"}


def test_checkpoints_of_two_runs_that_are_called_alike_bear_their_runs_names():
    folders = ["runs/a/candidates/tokens-9", "runs/b/candidates/tokens-9", "runs/b/candidates/last"]
    assert candidate_names([*map(Path, folders)]) == ["a/tokens-9", "b/tokens-9", "last"]
    assert candidate_names([Path("here/draft"), Path("there/draft")]) == [
        "here/draft",
        "there/draft",
    ]


def test_one_draft_twice_is_refused():
    with pytest.raises(UserError, match="two drafts are called a/d"):
        candidate_names([Path("a/d"), Path("a/d")])
