"""What a serving engine was seen to do with an exported draft."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from distill.speculative.architecture import context_limit
from distill.speculative.parting import Divergence


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
    dtype: str
    """Of the target's weights in this proof."""
    near_ties: int = 0
    """Prompts whose outputs part where rounding decides between two tokens."""
    unexplained: int = 0
    """Prompts whose outputs part elsewhere."""


def compare(
    engine: str,
    version: str,
    plain: Sequence[Sequence[int]],
    assisted: Sequence[Sequence[int]],
    *,
    counters: dict[str, int],
    dtype: str,
    parted: Sequence[Divergence] | None = None,
) -> Proof:
    """Put both arms' new tokens side by side.

    parted: why prompts differ; None where nobody can tell, so that no difference is explained.
    """
    pairs = zip(plain, assisted, strict=True)
    differing = sum(list(one) != list(other) for one, other in pairs)
    near_ties = sum(one.near_tie for one in parted or ())
    return Proof(
        engine=engine,
        version=version,
        prompts=len(plain),
        tokens=sum(len(tokens) for tokens in assisted),
        identical=not differing,
        counters=counters,
        dtype=dtype,
        near_ties=near_ties,
        unexplained=differing - near_ties,
    )


def within(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
) -> list[list[int]]:
    """The prompts' beginnings that leave room for the answer in both models' contexts."""
    limits = [context_limit(model) for model in (target, draft) if model is not None]
    room = max(1, min(limits) - max_new_tokens)
    return [list(prompt[:room]) for prompt in prompts]
