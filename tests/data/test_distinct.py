"""Likeness of texts by hand."""

import pytest

from distill.data.self_prompt import Distinct, shingles


def test_shingles_put_case_punctuation_and_width_aside() -> None:
    assert shingles("Sort a LIST, please!") == {("sort", "a", "list"), ("a", "list", "please")}
    assert shingles("sort　ａ list… please") == shingles("Sort a list please")
    assert shingles("Hello there") == {("hello", "there")}


@pytest.mark.parametrize(("likeness", "taken"), [(0.61, True), (0.6, False), (0.2, False)])
def test_three_shingles_of_five_in_common(likeness: float, taken: bool) -> None:
    """Four each; all but the last agree: 3 in both, 5 in either."""
    distinct = Distinct(likeness)
    assert distinct.take("how do i sort a list")
    assert distinct.take("how do i sort a tuple") is taken


def test_what_was_refused_refuses_nothing() -> None:
    distinct = Distinct(0.6)
    assert distinct.take("how do i sort a list")
    assert not distinct.take("how do i sort a tuple")
    # 3 of 5 with the refused one, 2 of 6 with the first.
    assert distinct.take("do i sort a tuple twice") is True


def test_a_repetition_is_never_taken_twice() -> None:
    distinct = Distinct(1.0)
    assert [distinct.take(text) for text in ("Hi", "hi!", "hi you", "日本語", "日本語。")] == [
        True, False, True, True, False,
    ]  # fmt: skip
