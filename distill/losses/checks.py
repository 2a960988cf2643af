"""What the fused losses refuse before any product.

Shapes: T tokens, V vocabulary, d width.
"""

from torch import Tensor

from distill.errors import UserError
from distill.losses.head import Head


def check_hidden(name: str, hidden: Tensor, head: Head) -> None:
    """Of ``name``: hidden [T, d] for a head [V, d]."""
    if hidden.ndim != 2 or hidden.shape[1] != head.weight.shape[1]:
        raise UserError(
            f"{name} hidden states are {tuple(hidden.shape)} and its head "
            f"{tuple(head.weight.shape)}; flatten them to [tokens, width] of the head's width"
        )


def check_chunk(chunk_size: int) -> None:
    if chunk_size < 1:
        raise UserError(f"chunk_size is {chunk_size}; use 1 or more")


def check_tokens(tokens: int, **each: Tensor | None) -> None:
    """One value [T] of each, where it is given."""
    for name, tensor in each.items():
        if tensor is not None and tensor.shape != (tokens,):
            raise UserError(
                f"student has {tokens} tokens and {name} is {tuple(tensor.shape)}; "
                "give one value a token, of the same tokens"
            )
