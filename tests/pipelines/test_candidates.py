"""What candidates are called, apart from any model."""

from pathlib import Path

import pytest

from distill.errors import UserError
from distill.pipelines.candidates import _names


def test_checkpoints_of_two_runs_that_are_called_alike_bear_their_runs_names():
    folders = ["runs/a/candidates/tokens-9", "runs/b/candidates/tokens-9", "runs/b/candidates/last"]
    assert _names([*map(Path, folders)]) == ["a/tokens-9", "b/tokens-9", "last"]
    assert _names([Path("here/draft"), Path("there/draft")]) == ["here/draft", "there/draft"]


def test_one_draft_twice_is_refused():
    with pytest.raises(UserError, match="two drafts are called a/d"):
        _names([Path("a/d"), Path("a/d")])
