"""Which prompts share a batch, and in what order batches are measured."""

from collections.abc import Sequence

import numpy as np

from distill.evaluate.records import Prompt

Unit = list[Prompt]
"""All turns of at most `batch_size` conversations, which are measured and resampled as a whole."""


def units(prompts: Sequence[Prompt], batch_size: int, seed: int) -> list[Unit]:
    """Full batches of prompts; a conversation lies in one unit, whatever the order of `prompts`.

    A domain's conversations of like length share a unit; what does not fill one is pooled over the
    domains. The shortest of these are left out where they fill no batch: a smaller batch is another
    load. The units come in an order that favours no length and no domain.
    """
    domains: dict[str, list[Unit]] = {}
    for turns in _conversations(prompts):
        domains.setdefault(turns[0].domain, []).append(turns)
    found: list[Unit] = []
    rest: list[Unit] = []
    for _, conversations in sorted(domains.items()):
        ordered = sorted(conversations, key=_by_length)
        whole = len(ordered) - len(ordered) % batch_size
        found += _chunks(ordered[:whole], batch_size)
        rest += ordered[whole:]
    rest.sort(key=_by_length)
    found += _chunks(rest[len(rest) % batch_size :], batch_size)
    return [found[index] for index in np.random.default_rng(seed).permutation(len(found))]


def batches(unit: Unit) -> list[list[Prompt]]:
    """The batches of a unit: its first turns make one, then its second ones, and so on.

    Turns that only some of the conversations have make no batch: it would be a smaller one.
    """
    by_turn = [
        [prompt for prompt in unit if prompt.turn == turn]
        for turn in sorted({prompt.turn for prompt in unit})
    ]
    return [batch for batch in by_turn if len(batch) == len(by_turn[0])]


def _conversations(prompts: Sequence[Prompt]) -> list[Unit]:
    found: dict[str, Unit] = {}
    for prompt in sorted(prompts, key=lambda prompt: (prompt.id, prompt.turn)):
        found.setdefault(prompt.id, []).append(prompt)
    return list(found.values())


def _by_length(turns: Unit) -> tuple[int, int, str]:
    return len(turns), len(turns[0].tokens), turns[0].id


def _chunks(conversations: list[Unit], size: int) -> list[Unit]:
    return [
        [prompt for turns in conversations[start : start + size] for prompt in turns]
        for start in range(0, len(conversations), size)
    ]
