"""How many tokens a round drafts: a fixed k, or up to k while the draft is confident.

Whether position j+1 is drafted may depend only on what was drafted up to j and on earlier rounds,
never on the draft at j+1 itself. So the choice changes the cost of a round and never the law of
its tokens.

Shapes: B rows.
"""

from dataclasses import dataclass

from torch import Tensor

from distill.errors import UserError


@dataclass(frozen=True)
class Confident:
    """Draft up to `max_draft_tokens`, and none behind a token of less confidence than `threshold`.

    Confidence is the probability that the draft gave to the token that it drew. transformers calls
    the threshold `assistant_confidence_threshold`, llama.cpp `--draft-p-min`.

    Raises:
        UserError: `max_draft_tokens` is below 1, or `threshold` is no probability.
    """

    max_draft_tokens: int
    threshold: float

    def __post_init__(self):
        if self.max_draft_tokens < 1:
            raise UserError("Confident.max_draft_tokens must be at least 1.")
        if not 0 <= self.threshold <= 1:
            raise UserError("Confident.threshold is a probability: give 0 to 1.")

    def start(self, rows: int) -> "ConfidentRound":
        """Begin a round of `rows` rows."""
        return ConfidentRound(rows, self.threshold)


class ConfidentRound:
    """One round, called as a drafter's `keep_going`: each row drafts until it is not confident.

    counts: how many drafts each row has wanted so far.
    """

    def __init__(self, rows: int, threshold: float):
        self.threshold = threshold
        self.counts = [0] * rows
        self._open = [True] * rows

    def __call__(self, confidence: Tensor) -> bool:
        """Whether any row wants a further draft; confidence [B] is of the tokens just drawn."""
        for row, sure in enumerate(confidence.tolist()):
            self.counts[row] += self._open[row]
            self._open[row] = self._open[row] and sure >= self.threshold
        return any(self._open)


DraftLength = int | Confident
"""A fixed k, or rounds that end early."""


def draft_length(k: int, confidence_threshold: float) -> DraftLength:
    """Rounds of k drafts; with a threshold above 0 they are rounds of at most k drafts."""
    return Confident(k, confidence_threshold) if k and confidence_threshold else k


def most_drafts(length: DraftLength) -> int:
    """The most tokens that a round can draft."""
    return length if isinstance(length, int) else length.max_draft_tokens
