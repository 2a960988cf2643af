"""Prompt lookup by hand, and rows that draft nothing."""

import pytest

from distill.errors import UserError
from distill.speculative.decode import decode
from distill.speculative.lookup import Occurrences, PromptLookup
from distill.speculative.sampling import Sampling

GREEDY = Sampling(temperature=0)


@pytest.mark.parametrize(
    ("tokens", "following"),
    [
        ([1, 2, 3], None),  # 3 never came before
        ([1, 2, 1], 1),  # 1 came at position 0; 2 followed at 1
        ([1, 2, 3, 1, 4, 1], 4),  # the last earlier 1 is at position 3
        ([1, 2, 3, 4, 2, 9, 1, 2], 2),  # "1 2" at the start beats the later "2"
        ([5, 5], 1),  # it follows itself
        ([7], None),
    ],
)
def test_the_longest_end_that_came_before(tokens, following):
    assert Occurrences(3).following(tokens) == following


def test_a_growing_row_finds_what_a_whole_one_does():
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 1, 4, 1, 5, 3, 1, 4]
    growing = Occurrences(2)
    for length in range(1, len(tokens) + 1):
        whole = Occurrences(2).following(tokens[:length])
        if length % 3:
            assert growing.following(tokens[:length]) == whole


def test_a_row_without_an_occurrence_drafts_nothing(target):
    """Its passes are plain; the row beside it drafts, as far as what it repeats goes."""
    out = decode(
        target,
        [[1, 2, 3, 4], [6, 7, 8, 6, 7]],
        drafter=PromptLookup(),
        num_draft_tokens=4,
        sampling=GREEDY,
        max_new_tokens=2,
    )
    alone, repeated = out.stats.per_prompt
    assert (alone.drafted, alone.plain_passes) == (0, alone.target_passes)
    assert repeated.drafted >= 1
    plain = decode(target, [[1, 2, 3, 4], [6, 7, 8, 6, 7]], sampling=GREEDY, max_new_tokens=2)
    assert out.tokens == plain.tokens


def test_nothing_to_look_for_is_refused():
    with pytest.raises(UserError, match="1 or more"):
        PromptLookup(0)
