"""Rounds whose length is decided token by token.

Whether position j+1 is drafted may depend only on what was drafted up to j and on earlier rounds,
never on the draft at j+1 itself; so the choice changes the cost of a round and never the law of
its tokens.

Shapes: B rows.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

BINS = 8
PRIOR_WEIGHT = 4.0


class Lengths(Protocol):
    """Decides one round after another; called as `propose`'s `keep_going`."""

    @property
    def counts(self) -> list[int]:
        """How many drafts each row wanted in this round."""
        ...

    def begin(self, cost_ratio: float) -> None:
        """A new round; cost_ratio as measured so far."""
        ...

    def __call__(self, confidence: Tensor) -> bool:
        """Whether any row wants a further draft; confidence [B] of the token just drawn."""
        ...

    def record(self, row: int, tested: int, accepted: int) -> None:
        """How the row's drafts of this round fared."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these."""
        ...


class ConfidentLengths:
    """`Confident`: every row goes on until a token falls below the threshold."""

    def __init__(self, rows: int, threshold: float):
        self.threshold = threshold
        self.counts = [0] * rows
        self.begin(1.0)

    def begin(self, cost_ratio: float) -> None:
        self.counts = [0] * len(self.counts)
        self._open = [True] * len(self.counts)

    def __call__(self, confidence: Tensor) -> bool:
        for row, sure in enumerate(confidence.tolist()):
            self.counts[row] += self._open[row]
            self._open[row] = self._open[row] and sure >= self.threshold
        return any(self._open)

    def record(self, row: int, tested: int, accepted: int) -> None:
        pass  # the threshold stays where it is

    def keep(self, rows: Sequence[int]) -> None:
        self.counts = [self.counts[row] for row in rows]


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
    """`Adaptive`: every row goes on while one more draft is expected to pay."""

    def __init__(self, rows: int, cost_ratio: float | None = None):
        self._calibrations = [Calibration() for _ in range(rows)]
        self._given_cost = cost_ratio
        self.begin(1.0)

    def begin(self, cost_ratio: float) -> None:
        self._cost = self._given_cost or cost_ratio
        rows = len(self._calibrations)
        self._running = [1.0] * rows
        self._expected = [1.0] * rows
        self._bins: list[list[int]] = [[] for _ in range(rows)]
        self._open = [True] * rows

    @property
    def counts(self) -> list[int]:
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
