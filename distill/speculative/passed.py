"""What one pass of a model over new positions gives back."""

from typing import NamedTuple

from torch import Tensor


class Passed(NamedTuple):
    """Logits [B, S, V] and hidden states [B, S, n·H] of S new positions; None if not asked for.

    B rows, V ids of the head, n states of width H side by side.
    """

    logits: Tensor | None
    states: Tensor | None
