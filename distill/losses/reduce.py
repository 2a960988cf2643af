"""Which positions count, and how per-token values become one number: masking and averaging.

Shapes: B rows, S tokens a row, T supervised tokens.
Everything is a ratio of sums. A mean of micro-batch or rank means would weigh a token by the number
of others it came with.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from distill.errors import UserError


def supervised_tokens(lengths: Tensor, prompt_lengths: Tensor, width: int) -> Tensor:
    """Tokens to be predicted: from the prompt's end to the row's. [B], [B] → bool [B, width].

    By lengths alone, never by token id: the padding id may be the end-of-sequence id, which is
    supervised.
    """
    position = torch.arange(width, device=lengths.device)
    start = prompt_lengths.clamp_min(1)  # nothing predicts token 0
    return (position >= start[:, None]) & (position < lengths[:, None])


def predicting(supervised: Tensor, documents: Tensor | None = None) -> Tensor:
    """Positions whose logits predict a supervised token: i predicts i + 1. bool [B, S] → same.

    ``documents`` [B, S] numbers the packed documents; nothing predicts across a join.
    """
    shifted = torch.zeros_like(supervised)
    shifted[:, :-1] = supervised[:, 1:]
    if documents is not None:
        shifted[:, :-1] &= documents[:, 1:] == documents[:, :-1]
    return shifted


def masked_sum(per_token: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Sum over the unmasked tokens, and their count, both 0-d.

    No token: a zero that is attached to the graph. Values outside the mask never reach the sum or
    the gradient, not even inf or nan.
    """
    if mask is None:
        return per_token.sum(), torch.tensor(per_token.numel(), device=per_token.device)
    if mask.shape != per_token.shape:
        raise UserError(
            f"mask {tuple(mask.shape)} and values {tuple(per_token.shape)} differ; "
            "give one flag a token"
        )
    return per_token[mask].sum(), mask.sum()


def window_mean(parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """One mean over the (sum, count) pairs of micro-batches or ranks; 0 without any token."""
    sums, counts = zip(*parts, strict=True)
    return torch.stack(sums).sum() / torch.stack(counts).sum().clamp_min(1)


def gradient_scale(global_tokens: int, world_size: int = 1) -> float | None:
    """What turns gradients of loss SUMS into the gradient of the mean over all ranks' tokens.

    Data-parallel training averages gradients over ranks, hence ``world_size``. None: no token, take
    no step.
    """
    return world_size / global_tokens if global_tokens else None
