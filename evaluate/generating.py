"""transformers' own decoding, set to do what a benchmark arm has to: greedy, so many tokens."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel

from distill.errors import UserError


def generating(
    target: PreTrainedModel,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    draft: PreTrainedModel | None = None,
    k: int = 0,
) -> Callable[[], None]:
    """A call of `generate` on prompts padded left; assisted by the draft where one is given.

    Both models' generation configs are replaced: no end token, no settings of the checkpoint.
    """
    width, device = max(map(len, prompts)), target.device
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts], device=device)
    seen = [[0] * (width - len(row)) + [1] * len(row) for row in prompts]
    mask = torch.tensor(seen, device=device)
    generate: Any = target.generate

    def run() -> None:
        target.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
        if draft is not None:
            draft.generation_config = _exactly(k)
        made = generate(
            ids, attention_mask=mask, max_new_tokens=max_new_tokens, assistant_model=draft
        )
        if made.shape[1] - width != max_new_tokens:
            raise UserError(
                f"generate emitted {made.shape[1] - width} tokens of {max_new_tokens}: lower "
                "benchmark.max_new_tokens so that it fits the target's context"
            )

    return run


def _exactly(k: int) -> GenerationConfig:
    """Settings of a draft that assists: k tokens a round, whatever its success or confidence."""
    return GenerationConfig(
        do_sample=False,
        pad_token_id=0,
        num_assistant_tokens=k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
