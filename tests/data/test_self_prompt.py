"""Prompts that the target writes: which are kept, and the same after an interruption."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from distill.data.self_prompt import write_prompts
from distill.data.sources import SelfPromptedSource
from distill.data.sources.splits import stable_hash
from distill.errors import UserError

SAID = [
    "Sort a list in Python",
    "sort a list, in python!",
    None,
    "hi",
    "a" * 41,
    "a bell\a rings",
    "half of a \ufffd letter",
    "Name the\ncapital of France",
    "never reached by the limit",
]
SETTINGS: dict[str, Any] = {
    "num_prompts": 2, "min_characters": 5, "max_characters": 40, "shard_rows": 3, "batch_size": 2,
    "tries": 5,
}  # fmt: skip
NUMBER = {stable_hash("self prompt", n): n for n in range(len(SAID))}
TURN: Any = SimpleNamespace(opening=(7, 8), ends={5, 1}, words=lambda tokens: SAID[tokens[0]])


def source(**changes) -> SelfPromptedSource:
    found = SelfPromptedSource(**SETTINGS | changes)
    found.check()
    return found


def echo(model, prompts, *, row_ids, eos_token_ids, vocabulary_size, **_):
    assert vocabulary_size == 9  # a padded head has more rows
    assert prompts == [[7, 8]] * len(row_ids)
    assert eos_token_ids == (1, 5)
    return SimpleNamespace(tokens=[[NUMBER[row]] for row in row_ids])


def write(folder, decode=echo, **changes) -> dict[str, Any]:
    return write_prompts(None, TURN, source(**changes), folder, vocabulary_size=9, decode=decode)  # type: ignore[arg-type]


def prompts(folder) -> list[str]:
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def test_samples_are_kept_or_dropped_by_hand(tmp_path, caplog) -> None:
    """Of the third shard the last is kept too, and cut off: two are asked for."""
    with caplog.at_level("INFO"):
        counts = write(tmp_path)
    assert caplog.messages[-1].startswith("self-prompting: 2/2, ")  # and a rate, batch by batch
    assert prompts(tmp_path) == [SAID[0], SAID[7]]
    assert (counts["prompts"], counts["sampled"], counts["shards"]) == (2, 9, 3)
    assert counts["dropped"] == {
        "like an earlier one": 1, "unfinished": 1, "too short": 1, "too long": 1,
        "not printable": 2,
    }  # fmt: skip


def test_an_interruption_costs_a_shard_and_changes_nothing(tmp_path) -> None:
    class Killed(BaseException):
        pass

    calls = []

    def dying(*arguments, **settings):
        calls.append(len(settings["row_ids"]))
        if len(calls) == 4:
            raise Killed
        return echo(*arguments, **settings)

    with pytest.raises(Killed):
        write(tmp_path / "parts", dying)
    assert calls == [2, 1, 2, 1]
    write(tmp_path / "parts", dying)
    assert calls[4:] == [2, 1, 2, 1]
    write(tmp_path / "whole", batch_size=3)
    assert prompts(tmp_path / "parts") == prompts(tmp_path / "whole")


def test_too_few_that_can_be_used(tmp_path) -> None:
    """Two tries for each of two prompts: after two shards of three it gives up."""
    with pytest.raises(UserError, match=r"1 of 6 samples.*1 too short.*data.source.tries"):
        write(tmp_path, tries=2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_prompts", 0), ("tries", 0), ("likeness", 0.0), ("likeness", 1.5), ("max_characters", 4)],
)
def test_settings_that_cannot_work(name, value) -> None:
    with pytest.raises(UserError, match=f"data.source.{name}"):
        source(**{name: value})


def test_rows_are_those_of_the_file_once_it_is_there(tmp_path) -> None:
    found = source()
    with pytest.raises(UserError, match="not written yet"):
        found.rows()
    write(tmp_path)
    found.read(tmp_path / "prompts.jsonl")
    rows = list(found.rows())
    assert {row.content.messages[0]["content"] for row in rows} == {SAID[0], SAID[7]}
    assert {row.domain for row in rows} == {"self_prompted"}
    assert found.fingerprint()["source"] == "self_prompted"


def test_batching_and_splitting_do_not_decide_what_is_written() -> None:
    assert source(batch_size=9, evaluation_fraction=0.5).writing() == source().writing()
    assert source(top_p=0.5).writing() != source().writing()
