"""Refuses an impossible call before any work."""

from collections.abc import Sequence

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative.drafters import Drafter
from distill.speculative.forward import head_size
from distill.speculative.lengths import DraftLength
from distill.speculative.sampling import Sampling

# Heads padded for the hardware differ by less than this; a larger difference is another tokenizer.
LARGEST_PADDING = 1024


def check_vocabulary(
    target: PreTrainedModel, drafter: Drafter | None, vocabulary_size: int | None
) -> int:
    """The number of ids that both models share."""
    heads = [head_size(target)] + ([drafter.head_size] if drafter is not None else [])
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


def check_prompts(prompts: Sequence[Sequence[int]], vocabulary: int, limit: int) -> None:
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


def check_numbers(
    drafter: Drafter | None, num_draft_tokens: DraftLength, max_new_tokens: int
) -> None:
    if isinstance(num_draft_tokens, int) and num_draft_tokens < 0:
        raise UserError(f"num_draft_tokens must be 0 or more; got {num_draft_tokens}.")
    if drafter is None and num_draft_tokens != 0:
        raise UserError("num_draft_tokens asks for drafts; pass a drafter= (or leave it at 0).")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens must be at least 1; got {max_new_tokens}.")


def check_sampling(sampling: Sampling | Sequence[Sampling], prompts: int) -> list[Sampling]:
    """One setting per prompt."""
    if isinstance(sampling, Sampling):
        return [sampling] * prompts
    if len(sampling) != prompts:
        raise UserError(
            f"sampling has {len(sampling)} settings for {prompts} prompts; give one each."
        )
    return list(sampling)


def check_row_ids(row_ids: Sequence[int] | None, prompts: int) -> list[int]:
    """The name of each prompt's random stream."""
    if row_ids is None:
        return list(range(prompts))
    if len(row_ids) != prompts:
        raise UserError(f"row_ids has {len(row_ids)} entries for {prompts} prompts; give one each.")
    return list(row_ids)


def check_devices(target: PreTrainedModel, drafter: Drafter | None) -> None:
    if drafter is not None and drafter.model.device != target.device:
        raise UserError(
            f"the drafter is on {drafter.model.device} and the target on {target.device}; "
            "move it there."
        )
