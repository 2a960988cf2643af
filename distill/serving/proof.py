"""What a serving engine was seen to do with an exported draft."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Proof:
    """Greedy decoding with the draft beside greedy decoding without it, prompt by prompt."""

    engine: str
    version: str
    prompts: int
    tokens: int
    """Committed with the draft, over all prompts."""
    identical: bool
    """Token for token, on every prompt."""
    counters: dict[str, int]
    """The engine's own counts of drafted and accepted tokens, under its own names."""


def compare(
    engine: str,
    version: str,
    plain: Sequence[Sequence[int]],
    assisted: Sequence[Sequence[int]],
    counters: dict[str, int],
) -> Proof:
    """Put both arms' new tokens side by side."""
    return Proof(
        engine=engine,
        version=version,
        prompts=len(plain),
        tokens=sum(len(tokens) for tokens in assisted),
        identical=[list(tokens) for tokens in plain] == [list(tokens) for tokens in assisted],
        counters=counters,
    )
