"""What acceptance is worth: tokens per round, and the speedup they make at measured costs.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", §3.2–3.3:
equation 1 and theorem 3.8, extended by the measured cost v of verifying k+1 tokens, which the
paper takes as 1.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """Times relative to one target step of one token, at the same batch and context.

    c: one draft step. v: one target step over k+1 tokens.
    """

    c: float
    v: float = 1.0

    def speedup(self, tokens: float, drafts: float) -> float:
        """Of rounds that commit so many tokens and draft so many, on average."""
        return tokens / (self.v + drafts * self.c)


def expected_tokens(alpha: float, k: int) -> float:
    """Mean tokens per round with the bonus, (1 − alpha^(k+1)) / (1 − alpha); k + 1 at alpha = 1.

    Written as the geometric sum it stands for, which has no singular point.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability, not {alpha}")
    if k < 0:
        raise ValueError(f"k, the number of drafted tokens, is at least 0, not {k}")
    return sum(alpha**i for i in range(k + 1))


def predicted_speedup(alpha: float, k: int, cost: Cost) -> float:
    """expected_tokens / (v + k·c). With v = 1 it is the paper's formula."""
    return cost.speedup(expected_tokens(alpha, k), k)
