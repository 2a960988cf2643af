"""Greedy speculative decoding against greedy plain decoding: identical, or why not."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import Drafter
from distill.speculative.round_length import DraftLength
from distill.speculative.sampling import Sampling

WAYS = 2
"""Plain and speculative decoding each reach a logit by a way of their own: both may be off."""

GREEDY = Sampling(temperature=0)


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


@dataclass(frozen=True)
class GreedyRun:
    """What both arms of a greedy comparison decode, and with what."""

    target: PreTrainedModel
    drafter: Drafter
    prompts: Sequence[list[int]]
    num_draft_tokens: DraftLength
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    vocabulary_size: int
    cache_type: type[RaggedCache] = RaggedCache


def divergences(run: GreedyRun) -> list[Divergence]:
    """A divergence for each prompt whose two outputs differ; prompts are decoded one by one."""
    found: list[Divergence] = []
    for index, prompt in enumerate(run.prompts):
        plain, speculative = _tokens(run, prompt, plain=True), _tokens(run, prompt, plain=False)
        if plain != speculative:
            found.append(_explain(run, index, plain, speculative))
    return found


def _tokens(run: GreedyRun, prompt: list[int], *, plain: bool) -> list[int]:
    return decode(
        run.target,
        [prompt],
        drafter=None if plain else run.drafter,
        num_draft_tokens=0 if plain else run.num_draft_tokens,
        sampling=GREEDY,
        max_new_tokens=run.max_new_tokens,
        eos_token_ids=run.eos_token_ids,
        vocabulary_size=run.vocabulary_size,
        cache_type=RaggedCache if plain else run.cache_type,
    ).tokens[0]


@torch.inference_mode()
def _explain(run: GreedyRun, index: int, plain: list[int], speculative: list[int]) -> Divergence:
    shared = next(
        (i for i, (a, b) in enumerate(zip(plain, speculative, strict=False)) if a != b),
        min(len(plain), len(speculative)),
    )
    tokens = [row[shared] if shared < len(row) else None for row in (plain, speculative)]
    prefix = torch.tensor([[*run.prompts[index], *plain[:shared]]], device=run.target.device)
    logits = run.target(prefix).logits[0, -1, : run.vocabulary_size].float()
    best = logits.max()
    # An output that ends where the other goes on is no matter of rounding: its gap is infinite.
    gaps = [float("inf") if token is None else (best - logits[token]).item() for token in tokens]
    tolerance = WAYS * _rounding(run, prefix, logits)
    return Divergence(index, shared, tokens[0], tokens[1], max(gaps), tolerance)


def _rounding(run: GreedyRun, prefix: Tensor, logits: Tensor) -> float:
    """How far two exact ways to the same logits [V] lie apart here.

    prefix: [1, S]. A pass over one more token has the same logits before it, and rounds otherwise.
    The largest difference over the vocabulary, and one unit in the last place of the largest logit
    at least, is measured on this very prefix, so the bound is as tight as the model's arithmetic.
    """
    longer = run.target(torch.cat((prefix, prefix[:, :1]), 1))
    again = longer.logits[0, -2, : run.vocabulary_size].float()
    place = torch.finfo(run.target.dtype).eps * logits.abs().max()
    return torch.maximum((again - logits).abs().max(), place).item()
