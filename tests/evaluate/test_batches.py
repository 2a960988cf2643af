"""Batches: a conversation stands in one unit, whole domains first, any order of prompts alike."""

import pytest

from distill.evaluate.batches import batches, units
from distill.evaluate.records import Prompt, bucket_of

PROMPTS = [
    Prompt(f"{domain}{i}", domain, [1] * (5 * i + 1), turn)
    for domain, count in (("chat", 5), ("code", 3))
    for i in range(count)
    for turn in ((0, 1) if domain == "chat" else (0,))
]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_conversation_is_in_one_unit_whatever_the_order(size) -> None:
    found = units(PROMPTS, size, seed=3)
    assert found == units(PROMPTS[::-1], size, seed=3)
    names = [{prompt.id for prompt in unit} for unit in found]
    assert sorted(name for unit in names for name in unit) == sorted({p.id for p in PROMPTS})
    assert max(map(len, names)) <= size
    assert sum(map(len, found)) == len(PROMPTS)


def test_domains_mix_only_in_what_fills_no_unit() -> None:
    found = units(PROMPTS, 2, seed=0)
    mixed = [unit for unit in found if len({prompt.domain for prompt in unit}) > 1]
    assert (len(found), len(mixed)) == (4, 1)


def test_turns_are_batched_apart() -> None:
    for unit in units(PROMPTS, 2, seed=0):
        found = batches(unit)
        assert [{prompt.turn for prompt in batch} for batch in found] in ([{0}], [{0}, {1}])
        assert all(len(batch) == 2 for batch in found)


def test_what_fills_no_batch_is_another_load_and_left_out() -> None:
    assert units(PROMPTS, 100, seed=0) == []
    found = units(PROMPTS, 3, seed=0)
    assert all(len({prompt.id for prompt in unit}) == 3 for unit in found)
    assert len(found) == len({prompt.id for prompt in PROMPTS}) // 3
    (unit,) = units(PROMPTS, 8, seed=0)
    assert [len(batch) for batch in batches(unit)] == [8]  # five second turns are no batch of eight


@pytest.mark.parametrize(
    ("tokens", "label"), [(1, "≤256"), (256, "≤256"), (257, "257–1024"), (1025, ">1024")]
)
def test_buckets(tokens, label) -> None:
    assert bucket_of(tokens, [256, 1024]) == label
