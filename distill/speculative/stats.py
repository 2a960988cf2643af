"""What one decoding counted and how long it took, and the ratios that may be formed from it.

Every ratio is a ratio of sums, so records pool by adding. Only committed tokens count: drafts
behind an end token were drafted, but neither tested nor accepted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class PositionStats:
    """Counts at one position of the draft block (0 is the first draft)."""

    tested: int = 0
    accepted: int = 0
    alpha_sum: float = 0.0


@dataclass
class PromptStats:
    """One prompt's counts.

    target_passes counts every pass that committed tokens for this prompt; plain_passes those among
    them that had no draft to test (near a limit, though drafting was asked for). tested: drafts up
    to and including the first rejection. alpha_sum: Σ over tested of Σ_x min(p, q).
    """

    index: int
    target_passes: int = 0
    plain_passes: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    committed: int = 0
    alpha_sum: float = 0.0
    per_position: list[PositionStats] = field(default_factory=list)
    finish_reason: str = ""

    def add_round(self, drafted: int, accepted: int, committed: int, alphas: list[float]) -> None:
        """Count one round: `accepted` drafts by the rule, `committed` tokens after the cut at EOS.

        alphas: Σ_x min(p, q) at each drafted position.
        """
        self.target_passes += 1
        self.committed += committed
        self.drafted += drafted
        kept = min(accepted, committed)
        tested = min(kept + 1, drafted, committed)
        self.tested += tested
        self.accepted += kept
        self.alpha_sum += sum(alphas[:tested])
        while len(self.per_position) < drafted:
            self.per_position.append(PositionStats())
        for position in range(tested):
            at = self.per_position[position]
            at.tested += 1
            at.accepted += position < kept
            at.alpha_sum += alphas[position]


@dataclass(frozen=True)
class Stats:
    """Counts pooled over prompts. A ratio is NaN where nothing was counted."""

    per_prompt: list[PromptStats]

    @property
    def target_passes(self) -> int:
        return sum(record.target_passes for record in self.per_prompt)

    @property
    def plain_passes(self) -> int:
        return sum(record.plain_passes for record in self.per_prompt)

    @property
    def drafted(self) -> int:
        return sum(record.drafted for record in self.per_prompt)

    @property
    def tested(self) -> int:
        return sum(record.tested for record in self.per_prompt)

    @property
    def accepted(self) -> int:
        return sum(record.accepted for record in self.per_prompt)

    @property
    def committed(self) -> int:
        return sum(record.committed for record in self.per_prompt)

    @property
    def alpha(self) -> float:
        """Mean of Σ_x min(p, q) over the tested positions (analytic)."""
        return _ratio(sum(record.alpha_sum for record in self.per_prompt), self.tested)

    @property
    def alpha_empirical(self) -> float:
        """The share of tested drafts that were accepted (empirical)."""
        return _ratio(self.accepted, self.tested)

    @property
    def tokens_per_pass(self) -> float:
        """Tokens committed per target pass, bonus tokens included."""
        return _ratio(self.committed, self.target_passes)

    @property
    def draft_utilisation(self) -> float:
        """Accepted over drafted. Falls with k even for a fixed alpha: not an acceptance rate."""
        return _ratio(self.accepted, self.drafted)

    @property
    def per_position(self) -> list[PositionStats]:
        """Counts at each position of the draft block."""
        return _pooled(record.per_position for record in self.per_prompt)


@dataclass
class Timing:
    """Wall time in seconds, synchronised with the device. The whole call takes prefill + decode.

    draft_steps: tokens drafted one after another. verify_steps: target passes.
    """

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    draft_steps: int = 0
    verify_steps: int = 0


def _pooled(records: Iterable[list[PositionStats]]) -> list[PositionStats]:
    pooled: list[PositionStats] = []
    for positions in records:
        while len(pooled) < len(positions):
            pooled.append(PositionStats())
        for total, one in zip(pooled, positions, strict=False):
            total.tested += one.tested
            total.accepted += one.accepted
            total.alpha_sum += one.alpha_sum
    return pooled


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
