"""How many tokens to draft: a fixed k, while the draft is confident, or while a draft should pay.

Confidence: the probability that the draft gave to the token that it drew.
"""

from dataclasses import dataclass

from distill.errors import UserError
from distill.speculative.pacing import AdaptiveLengths, ConfidentLengths, Lengths


@dataclass(frozen=True)
class Adaptive:
    """Draft while the expected gain of one more token exceeds its cost.

    With a_j the estimated acceptance probability of the j-th draft, Π_j = a_1⋯a_j and c the cost
    ratio, a round of j drafts yields E_j = 1 + Π_1 + … + Π_j tokens in time 1 + jc. One more draft
    pays while Π_{j+1} / c > E_j / (1 + jc): its marginal rate beats the average rate so far.

    a_j comes from how sure the draft was of token j, calibrated per row on what was accepted
    before.
    cost_ratio: time of a draft step over time of a target step; None measures it while decoding
    (then the number of drafts, not the law of the output, depends on the clock).
    """

    max_draft_tokens: int = 8
    cost_ratio: float | None = None

    def __post_init__(self):
        if self.max_draft_tokens < 1:
            raise UserError("Adaptive.max_draft_tokens must be at least 1.")
        if self.cost_ratio is not None and self.cost_ratio <= 0:
            raise UserError("Adaptive.cost_ratio must be positive, or None to measure it.")

    def lengths(self, rows: int) -> Lengths:
        return AdaptiveLengths(rows, self.cost_ratio)


@dataclass(frozen=True)
class Confident:
    """Draft up to `max_draft_tokens`, but none behind a token of less confidence than `threshold`.

    What transformers calls `assistant_confidence_threshold` and llama.cpp `--draft-p-min`.
    """

    max_draft_tokens: int
    threshold: float

    def __post_init__(self):
        if self.max_draft_tokens < 1:
            raise UserError("Confident.max_draft_tokens must be at least 1.")
        if not 0 <= self.threshold <= 1:
            raise UserError("Confident.threshold is a probability: give 0 to 1.")

    def lengths(self, rows: int) -> Lengths:
        return ConfidentLengths(rows, self.threshold)


DraftLength = int | Adaptive | Confident


def draft_length(k: int, confidence_threshold: float) -> DraftLength:
    """Rounds of k drafts; with a threshold of at most so many."""
    return Confident(k, confidence_threshold) if k and confidence_threshold else k


def most_drafts(num_draft_tokens: DraftLength) -> int:
    """The most tokens a round can draft."""
    if isinstance(num_draft_tokens, int):
        return num_draft_tokens
    return num_draft_tokens.max_draft_tokens


def varying_lengths(num_draft_tokens: DraftLength, rows: int) -> Lengths | None:
    """What decides round by round; None for a fixed k."""
    return None if isinstance(num_draft_tokens, int) else num_draft_tokens.lengths(rows)
