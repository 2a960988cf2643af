"""`decode`: continue prompts with a target, exactly; with a drafter, faster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative.architecture import context_limit, head_size
from distill.speculative.cache import RaggedCache
from distill.speculative.cached_model import cached_target
from distill.speculative.drafters import Drafter, LiveRows
from distill.speculative.loop import Loop, Row
from distill.speculative.processors import Distribution
from distill.speculative.round_length import DraftLength, most_drafts
from distill.speculative.rule import Rule, speculative_rule
from distill.speculative.sampling import Sampling
from distill.speculative.stats import PromptStats, Stats, Timing
from distill.speculative.uniforms import Uniforms

# Heads padded for the hardware differ by less than this; a larger difference is another tokenizer.
LARGEST_PADDING = 1024


@dataclass(frozen=True)
class Output:
    """tokens[i]: the new tokens of prompt i, its end token included."""

    tokens: list[list[int]]
    stats: Stats
    timing: Timing


def decode(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    drafter: Drafter | None = None,
    num_draft_tokens: DraftLength = 0,
    sampling: Sampling | Sequence[Sampling] = Sampling(),  # noqa: B008 (frozen)
    max_new_tokens: int = 128,
    eos_token_ids: Sequence[int] = (),
    seed: int = 0,
    row_ids: Sequence[int] | None = None,
    vocabulary_size: int | None = None,
    rule: Rule = speculative_rule,
    cache_type: type[RaggedCache] = RaggedCache,
    watch: Callable[[int], None] = lambda _: None,
) -> Output:
    """Continue prompts with the target, exactly; with a drafter, faster.

    Args:
        target: any transformers causal LM with full or sliding-window attention.
        prompts: token ids, each of at least one token and shorter than the target's context.
        drafter: what guesses; None is plain decoding through the same forward path.
        num_draft_tokens: k per round, or `Confident`. It is clipped near a limit of either model.
        sampling: one setting, or one per prompt.
        max_new_tokens: exact budget of each row; a row also ends where the target's context does.
        eos_token_ids: ids that end a row (the target's list; the drafter's own counts for nothing).
        seed: of all random streams. Row i draws from stream (seed, row_ids[i]).
        row_ids: names of the rows' streams, default 0, 1, …: pass a prompt's number in the whole
            set to get the same tokens in any batch.
        vocabulary_size: number of real ids shared by both models, default the smaller head.
        rule: the acceptance rule for sampled rows (a seam for negative controls).
        cache_type: the target's cache (a seam for negative controls).
        watch: is told after every round how many tokens are still to come at most, of all rows.

    Raises:
        UserError: for input that cannot work, naming the remedy.
    """
    _check_numbers(drafter, num_draft_tokens, max_new_tokens)
    _check_devices(target, drafter)
    vocabulary = _check_vocabulary(target, drafter, vocabulary_size)
    limit = context_limit(target)
    _check_prompts(prompts, vocabulary, limit)
    settings = _check_sampling(sampling, len(prompts))
    ids = _check_row_ids(row_ids, len(prompts))
    if not prompts:
        return Output([], Stats([]), Timing())
    device = target.device
    live = LiveRows(
        contexts=[list(prompt) for prompt in prompts],
        distribution=Distribution(settings, [len(p) for p in prompts], eos_token_ids, device),
        vocabulary=vocabulary,
        longest=max(map(len, prompts)) + max_new_tokens + most_drafts(num_draft_tokens),
        uniforms=torch.zeros((len(prompts), 0)),
    )
    budgets = [min(max_new_tokens, limit - len(prompt)) for prompt in prompts]
    rows = [Row(PromptStats(i), budget, []) for i, budget in enumerate(budgets)]
    loop = Loop(
        live=live,
        target=cached_target(target, cache_type),
        drafter=drafter,
        draft_length=num_draft_tokens,
        rows=list(rows),
        streams=Uniforms(seed, ids, device),
        eos=frozenset(eos_token_ids),
        rule=rule,
        watch=watch,
    )
    models = [target] if drafter is None or drafter.model is None else [target, drafter.model]
    with evaluating(*models), torch.inference_mode():
        timing = loop.run()
    return Output([row.tokens for row in rows], Stats([row.stats for row in rows]), timing)


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode inside, each module's own mode restored after."""
    training = [module for model in models for module in model.modules() if module.training]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _check_vocabulary(
    target: PreTrainedModel, drafter: Drafter | None, vocabulary_size: int | None
) -> int:
    """The number of ids that both models share."""
    heads = [head_size(target)]
    if drafter is not None and drafter.head_size is not None:
        heads.append(drafter.head_size)
    if vocabulary_size is None:
        if max(heads) - min(heads) >= LARGEST_PADDING:
            raise UserError(
                f"target and drafter have {heads[0]} and {heads[1]} output ids: not the same "
                "tokenizer; use a drafter with the target's tokenizer, or pass vocabulary_size= if "
                "the first ids are shared."
            )
        return min(heads)
    if not 1 <= vocabulary_size <= min(heads):
        raise UserError(
            f"vocabulary_size must be between 1 and {min(heads)}; got {vocabulary_size}."
        )
    return vocabulary_size


def _check_prompts(prompts: Sequence[Sequence[int]], vocabulary: int, limit: int) -> None:
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(
                f"prompt {index} is empty; start it with at least one token (e.g. BOS)."
            )
        if len(prompt) >= limit:
            raise UserError(
                f"prompt {index} has {len(prompt)} tokens and the target's context holds {limit}; "
                "shorten it."
            )
        outside = next((t for t in prompt if not 0 <= t < vocabulary), None)
        if outside is not None:
            raise UserError(
                f"prompt {index} holds token id {outside}, outside the shared vocabulary of "
                f"{vocabulary}; encode it with the target's tokenizer."
            )


def _check_numbers(
    drafter: Drafter | None, num_draft_tokens: DraftLength, max_new_tokens: int
) -> None:
    if isinstance(num_draft_tokens, int) and num_draft_tokens < 0:
        raise UserError(f"num_draft_tokens must be 0 or more; got {num_draft_tokens}.")
    if drafter is None and num_draft_tokens != 0:
        raise UserError("num_draft_tokens asks for drafts; pass a drafter= (or leave it at 0).")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1; got {max_new_tokens}.")


def _check_sampling(sampling: Sampling | Sequence[Sampling], prompts: int) -> list[Sampling]:
    """One setting per prompt."""
    if isinstance(sampling, Sampling):
        return [sampling] * prompts
    if len(sampling) != prompts:
        raise UserError(
            f"sampling has {len(sampling)} settings for {prompts} prompts; give one each."
        )
    return list(sampling)


def _check_row_ids(row_ids: Sequence[int] | None, prompts: int) -> list[int]:
    """The name of each prompt's random stream."""
    if row_ids is None:
        return list(range(prompts))
    if len(row_ids) != prompts:
        raise UserError(f"row_ids has {len(row_ids)} entries for {prompts} prompts; give one each.")
    return list(row_ids)


def _check_devices(target: PreTrainedModel, drafter: Drafter | None) -> None:
    model = None if drafter is None else drafter.model
    if model is not None and model.device != target.device:
        raise UserError(
            f"the drafter is on {model.device} and the target on {target.device}; move it there."
        )
