"""Where two greedy outputs of one target part, and whether rounding alone explains it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

WAYS = 2
"""Plain and speculative decoding each reach a logit by a way of their own: both may be off."""


@dataclass(frozen=True)
class Divergence:
    """The first position where a prompt's outputs differ.

    gap: how far the lower of the two tokens is below the best logit, in one pass over the shared
    prefix, without a cache.
    """

    prompt: int
    position: int
    plain_token: int | None
    speculative_token: int | None
    gap: float
    tolerance: float

    @property
    def near_tie(self) -> bool:
        return self.gap <= self.tolerance


def divergences(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    plain: Sequence[Sequence[int]],
    speculative: Sequence[Sequence[int]],
    vocabulary_size: int | None = None,
) -> list[Divergence]:
    """One for each prompt whose two outputs differ, in the order of the prompts.

    vocabulary_size: ids that both models share; of a padded head the others are no tokens.
    """
    return [
        _explain(target, index, prompts[index], one, other, vocabulary_size)
        for index, (one, other) in enumerate(zip(plain, speculative, strict=True))
        if list(one) != list(other)
    ]


@torch.inference_mode()
def _explain(
    target: PreTrainedModel,
    index: int,
    prompt: Sequence[int],
    plain: Sequence[int],
    speculative: Sequence[int],
    vocabulary_size: int | None,
) -> Divergence:
    shared = next(
        (i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b),
        min(len(plain), len(speculative)),
    )
    tokens = [row[shared] if shared < len(row) else None for row in (plain, speculative)]
    prefix = torch.tensor([[*prompt, *plain[:shared]]], device=target.device)
    logits = target(prefix).logits[0, -1, :vocabulary_size].float()
    best = logits.max()
    # An output that ends where the other goes on is no matter of rounding: its gap is infinite.
    gaps = [float("inf") if token is None else (best - logits[token]).item() for token in tokens]
    tolerance = WAYS * _rounding(target, prefix, logits)
    return Divergence(index, shared, tokens[0], tokens[1], max(gaps), tolerance)


def _rounding(target: PreTrainedModel, prefix: Tensor, logits: Tensor) -> float:
    """How far two exact ways to the same logits [V] lie apart here.

    prefix: [1, S]. A pass over one more token has the same logits before it, and rounds otherwise.
    The largest difference over the vocabulary, and one unit in the last place of the largest logit
    at least, is measured on this very prefix, so the bound is as tight as the model's arithmetic.
    """
    longer = target(torch.cat((prefix, prefix[:, :1]), 1))
    again = longer.logits[0, -2, : len(logits)].float()
    place = torch.finfo(target.dtype).eps * logits.abs().max()
    return torch.maximum((again - logits).abs().max(), place).item()
