"""A static, ragged key/value cache. Rolling back only makes a row's length smaller.

Shapes: B rows, H key/value heads, S new positions, L capacity, D head width. Per layer two tensors
[B, H, L, D]. Row b holds lengths[b] valid positions; what lies beyond is stale and is masked by
length, so rejecting drafts copies nothing and rows may stand at different lengths.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

BLOCK = 256


class RaggedCache(Cache):
    """transformers' `Cache` interface over static storage.

    One pass: `begin(S)`, the model's forward (each layer calls `update`), `advance(counts)`. Sliding-window
    layers keep all positions too; their window is a matter of the mask.
    """

    def __init__(self, batch: int, device: torch.device, block: int = BLOCK):
        # The base class asks for one of two layer lists; this class stores its layers itself.
        super().__init__(layers=[])
        self.lengths = [0] * batch
        self.device = device
        self._block = block
        self.capacity = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self.positions = torch.zeros((batch, 0), dtype=torch.long, device=device)
        self.span = 0
        self.uniform_start: int | None = None

    def begin(self, width: int) -> None:
        """Make room for `width` more positions of every row, and fix where they will be written."""
        self.span = max(self.lengths) + width
        # Rows that stand at one length (a batch of one, above all) are written as a slice.
        self.uniform_start = self.lengths[0] if min(self.lengths) == max(self.lengths) else None
        start = torch.tensor(self.lengths, device=self.device)
        self.positions = start[:, None] + torch.arange(width, device=self.device)
        self._rows = torch.arange(len(self.lengths), device=self.device)[:, None]
        if self.span > self.capacity:
            self.capacity = -(-self.span // self._block) * self._block
            self._keys = [_grown(keys, self.capacity) for keys in self._keys]
            self._values = [_grown(values, self.capacity) for values in self._values]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H, S, D] at each row's own positions; return all positions up to the longest row."""
        if layer_idx == len(self._keys):
            self._keys.append(_empty_like(key_states, self.capacity))
            self._values.append(_empty_like(value_states, self.capacity))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        if self.uniform_start is not None:
            new = slice(self.uniform_start, self.span)
            keys[:, :, new] = key_states
            values[:, :, new] = value_states
        else:
            keys[self._rows, :, self.positions] = key_states.transpose(1, 2)
            values[self._rows, :, self.positions] = value_states.transpose(1, 2)
        return keys[:, :, : self.span], values[:, :, : self.span]

    def advance(self, counts: Sequence[int]) -> None:
        """Row b's first counts[b] written positions become valid."""
        self.lengths = [n + count for n, count in zip(self.lengths, counts, strict=True)]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Shorten rows to `lengths`. Nothing is copied or recomputed."""
        if any(new > old for new, old in zip(lengths, self.lengths, strict=True)):
            raise AssertionError("a rollback can only shorten a row")
        self.lengths = list(lengths)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these (finished rows then cost nothing)."""
        index = torch.tensor(rows, device=self.device)
        self.lengths = [self.lengths[row] for row in rows]
        self._keys = [keys.index_select(0, index) for keys in self._keys]
        self._values = [values.index_select(0, index) for values in self._values]

    def visible(self, window: int | None = None) -> Tensor:
        """Which positions each new position attends to: bool [B, 1, S, span], causal, within the window."""
        kv = torch.arange(self.span, device=self.device)
        query = self.positions[:, None, :, None]
        seen = kv <= query
        return seen if window is None else seen & (kv > query - window)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths)


def _empty_like(states: Tensor, capacity: int) -> Tensor:
    B, H, _, D = states.shape
    # Zeros, not garbage: a masked position's weight is 0, and 0 · NaN would be NaN.
    return states.new_zeros((B, H, capacity, D))


def _grown(states: Tensor, capacity: int) -> Tensor:
    larger = _empty_like(states, capacity)
    larger[:, :, : states.shape[2]] = states
    return larger
