"""Prompt lookup: what followed the last tokens when they came before is drafted again.

Saxena 2023, "Prompt Lookup Decoding". It has no weights, so it is what a trained draft has to beat.

Shapes: B rows, K drafted tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from distill.errors import UserError
from distill.speculative.architecture import NO_LIMIT
from distill.speculative.drafters import KeepGoing, LiveRows, Proposal


class Occurrences:
    """Where a growing row of tokens last had each run of 1 … `longest` tokens with more behind."""

    def __init__(self, longest: int):
        self._followed_at: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]
        self._read = 0

    def following(self, tokens: Sequence[int]) -> int | None:
        """The position behind the last earlier occurrence of the longest end of the row."""
        self._grow(tokens)
        for length in range(min(len(self._followed_at), len(tokens) - 1), 0, -1):
            found = self._followed_at[length - 1].get(tuple(tokens[-length:]))
            if found is not None:
                return found
        return None

    def _grow(self, tokens: Sequence[int]) -> None:
        """Note the runs that end before the row's last token."""
        for end in range(self._read + 1, len(tokens)):
            for length in range(1, min(len(self._followed_at), end) + 1):
                self._followed_at[length - 1][tuple(tokens[end - length : end])] = end
            self._read = end


class PromptLookup:
    """Drafts from each row's own context; a row without an occurrence drafts nothing.

    longest: tokens that are looked for first; one fewer, down to 1, while there is no occurrence.
    """

    model = None
    head_size = None
    reads = ()

    def __init__(self, longest: int = 3):
        if longest < 1:
            raise UserError(f"prompt lookup looks for 1 or more tokens; got {longest}.")
        self._longest = longest

    def room(self, length: int) -> int:
        return NO_LIMIT

    def prefill(self, batch: LiveRows) -> None:
        self._live = batch
        self._occurrences = [Occurrences(self._longest) for _ in batch.contexts]

    def read(self, states: Tensor) -> None:
        raise AssertionError("prompt lookup reads tokens only")

    def propose(self, k: int, keep_going: KeepGoing | None = None) -> Proposal:
        drafts: list[list[int]] = []
        for tokens, occurrences in zip(self._live.contexts, self._occurrences, strict=True):
            start = occurrences.following(tokens)
            drafts.append([] if start is None else tokens[start : start + k])
        counts = [len(row) for row in drafts]
        width = max(counts)
        if keep_going is not None:
            width = self._told(width, keep_going)
        padded = [(row + [0] * width)[:width] for row in drafts]
        tokens = torch.tensor(padded, dtype=torch.long, device=self._live.uniforms.device)
        return Proposal(tokens, None, [min(count, width) for count in counts])

    def _told(self, width: int, keep_going: KeepGoing) -> int:
        """How many of `width` drafts are wanted; each has probability 1."""
        sure = torch.ones(len(self._live.contexts))
        for j in range(width):
            if not keep_going(sure):
                return j + 1
        return width

    def commit(self, accepted: Sequence[int]) -> None:
        """The contexts themselves have grown: the next round reads on in them."""

    def keep(self, rows: Sequence[int]) -> None:
        self._occurrences = [self._occurrences[row] for row in rows]
