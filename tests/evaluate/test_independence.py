"""Units of what is independent: windows, turns, and batches that share a source."""

import pytest

from distill.evaluate.independence import independent_units, source_of


@pytest.mark.parametrize(
    ("id", "source"),
    [
        ("json/decoder.py@512", "json/decoder.py"),
        ("json/decoder.py:1893", "json/decoder.py"),
        ("chat-7#3", "chat-7"),
        ("chat-7", "chat-7"),
        ("part/a:b", "part/a:b"),
    ],
)
def test_a_row_is_of_the_file_or_conversation_that_its_id_begins_with(id: str, source: str) -> None:
    assert source_of(id) == source


def test_a_group_that_is_known_counts_before_the_id() -> None:
    assert source_of("math:1", "one") == "one"
    assert source_of("math:1", "one") != source_of("math:2", "two")
    assert source_of("math:1") == source_of("math:2")  # as windows of one file


def test_batches_that_share_a_source_are_one_unit() -> None:
    batches = {
        "b1": ["x.py", "y.py"],
        "b2": ["z.py", "chat-1"],
        "b3": ["y.py", "w.py"],  # shares y.py with b1
        "b4": ["w.py"],  # and w.py with b3, so that it belongs to b1 too
    }
    assert independent_units(batches) == {"b1": "b1", "b2": "b2", "b3": "b1", "b4": "b1"}


def test_a_batch_that_joins_two_earlier_ones_makes_all_three_one() -> None:
    batches = {"c": ["a", "b"], "a": ["a"], "b": ["b"]}
    assert independent_units(batches) == {"a": "a", "b": "a", "c": "a"}
