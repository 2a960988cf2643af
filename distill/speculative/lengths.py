"""How many tokens to draft: a fixed k, or as long as the next draft is expected to pay.

Whether position j+1 is drafted may depend only on what was drafted up to j and on earlier rounds,
never on the draft at j+1 itself; so the choice changes the cost of a round and never the law of
its tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from distill.errors import UserError

BINS = 8
PRIOR_WEIGHT = 4.0


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


def most_drafts(num_draft_tokens: int | Adaptive) -> int:
    """The most tokens a round can draft."""
    if isinstance(num_draft_tokens, Adaptive):
        return num_draft_tokens.max_draft_tokens
    return num_draft_tokens


class Calibration:
    """Acceptance frequency by confidence bin, for one row. Starts from the confidence itself."""

    def __init__(self):
        centres = [(b + 0.5) / BINS for b in range(BINS)]
        self._accepted = [PRIOR_WEIGHT * centre for centre in centres]
        self._tested = [PRIOR_WEIGHT] * BINS

    def estimate(self, bin_: int) -> float:
        return self._accepted[bin_] / self._tested[bin_]

    def mean(self) -> float:
        """What to expect of a token not drafted yet."""
        return sum(self._accepted) / sum(self._tested)

    def record(self, bin_: int, accepted: bool) -> None:
        self._tested[bin_] += 1
        self._accepted[bin_] += accepted


class AdaptiveLengths:
    """One round after another: passed to `propose` as its `keep_going`."""

    def __init__(self, rows: int):
        self._calibrations = [Calibration() for _ in range(rows)]
        self.begin(1.0)

    def begin(self, cost_ratio: float) -> None:
        self._cost = cost_ratio
        rows = len(self._calibrations)
        self._running = [1.0] * rows
        self._expected = [1.0] * rows
        self._bins: list[list[int]] = [[] for _ in range(rows)]
        self._open = [True] * rows

    @property
    def counts(self) -> list[int]:
        """How many drafts each row wanted."""
        return [len(bins) for bins in self._bins]

    def __call__(self, confidence: Tensor) -> bool:
        for row, sure in enumerate(confidence.tolist()):
            if self._open[row]:
                self._extend(row, min(int(sure * BINS), BINS - 1))
        return any(self._open)

    def _extend(self, row: int, bin_: int) -> None:
        calibration = self._calibrations[row]
        self._bins[row].append(bin_)
        self._running[row] *= calibration.estimate(bin_)
        self._expected[row] += self._running[row]
        gain = self._running[row] * calibration.mean()
        spent = 1 + len(self._bins[row]) * self._cost
        self._open[row] = gain * spent > self._cost * self._expected[row]

    def record(self, row: int, tested: int, accepted: int) -> None:
        for position, bin_ in enumerate(self._bins[row][:tested]):
            self._calibrations[row].record(bin_, position < accepted)

    def keep(self, rows: Sequence[int]) -> None:
        self._calibrations = [self._calibrations[row] for row in rows]
