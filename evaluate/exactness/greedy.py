"""Greedy speculative decoding against greedy plain decoding: identical, or why not."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from distill.speculative import parting
from distill.speculative.cache import RaggedCache
from distill.speculative.decode import decode
from distill.speculative.drafters import Drafter
from distill.speculative.parting import Divergence
from distill.speculative.round_length import DraftLength
from distill.speculative.sampling import Sampling

GREEDY = Sampling(temperature=0)


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
    plain, speculative = (
        [_tokens(run, prompt, plain=arm) for prompt in run.prompts] for arm in (True, False)
    )
    return parting.divergences(run.target, run.prompts, plain, speculative, run.vocabulary_size)


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
