"""`decode`: continue prompts with a target, exactly; with a drafter, faster."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel

from distill.speculative import checks
from distill.speculative.cache import RaggedCache
from distill.speculative.drafters import Batch, Drafter
from distill.speculative.features import context_limit
from distill.speculative.lengths import DraftLength, most_drafts
from distill.speculative.loop import Loop, Row, Rule, Timing
from distill.speculative.processors import Distribution
from distill.speculative.rule import speculative_rule
from distill.speculative.runner import target_runner
from distill.speculative.sampling import Sampling
from distill.speculative.stats import PromptStats, Stats
from distill.speculative.uniforms import Uniforms


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
) -> Output:
    """Continue prompts with the target, exactly; with a drafter, faster.

    Args:
        target: any transformers causal LM with full or sliding-window attention.
        prompts: token ids, each of at least one token and shorter than the target's context.
        drafter: what guesses; None is plain decoding through the same forward path.
        num_draft_tokens: k per round, `Confident` or `Adaptive`. Clipped near a limit of either
            model.
        sampling: one setting, or one per prompt.
        max_new_tokens: exact budget of each row; a row also ends where the target's context does.
        eos_token_ids: ids that end a row (the target's list; the drafter's own counts for nothing).
        seed: of all random streams. Row i draws from stream (seed, row_ids[i]).
        row_ids: names of the rows' streams, default 0, 1, …: pass a prompt's number in the whole
            set to get the same tokens in any batch.
        vocabulary_size: number of real ids shared by both models, default the smaller head.
        rule: the acceptance rule for sampled rows (a seam for negative controls).
        cache_type: the target's cache (a seam for negative controls).

    Raises:
        UserError: for input that cannot work, naming the remedy.
    """
    checks.check_numbers(drafter, num_draft_tokens, max_new_tokens)
    checks.check_devices(target, drafter)
    vocabulary = checks.check_vocabulary(target, drafter, vocabulary_size)
    limit = context_limit(target)
    checks.check_prompts(prompts, vocabulary, limit)
    settings = checks.check_sampling(sampling, len(prompts))
    ids = checks.check_row_ids(row_ids, len(prompts))
    if not prompts:
        return Output([], Stats([]), Timing())
    device = target.device
    batch = Batch(
        contexts=[list(prompt) for prompt in prompts],
        distribution=Distribution(settings, [len(p) for p in prompts], eos_token_ids, device),
        vocabulary=vocabulary,
        longest=max(map(len, prompts)) + max_new_tokens + most_drafts(num_draft_tokens),
        uniforms=torch.zeros((len(prompts), 0)),
    )
    budgets = [min(max_new_tokens, limit - len(prompt)) for prompt in prompts]
    rows = [Row(PromptStats(i), budget, []) for i, budget in enumerate(budgets)]
    loop = Loop(
        batch=batch,
        target=target_runner(target, cache_type),
        drafter=drafter,
        draft_length=num_draft_tokens,
        rows=list(rows),
        streams=Uniforms(seed, ids, device),
        eos=frozenset(eos_token_ids),
        rule=rule,
    )
    with evaluating(target, *([drafter.model] if drafter else [])), torch.inference_mode():
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
