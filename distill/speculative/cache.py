"""A static, ragged key/value cache. Rolling back only makes a row's length smaller.

Shapes: B live rows, H key/value heads, S new positions, L capacity, D head width. Per layer two
tensors [≥B, H, L, D]. Row b holds lengths[b] valid positions; what lies beyond is stale and is
masked by length, so rejecting drafts copies nothing and rows may stand at different lengths.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

BLOCK = 256
# Passes of at most this many positions take fixed shapes where the cache is `fixed`.
STEP_WIDTH = 16


class RaggedCache(Cache):
    """transformers' `Cache` interface over static storage.

    One pass: `begin(S)`, the model's forward (each layer calls `update`), `advance(counts)`.
    Sliding-window layers keep all positions too; their window is a matter of the mask.
    A layer's storage lies where its keys come from: a model may be spread over several devices.

    fixed: give passes of few positions shapes that change only every BLOCK positions, and address
    them through tensors alone, so that they can be captured as CUDA graphs. Otherwise only what is
    valid is read.
    """

    def __init__(self, batch: int, device: torch.device, *, fixed: bool = False):
        # The base class wants to be told how to make layers; this class stores its tensors itself.
        super().__init__(layers=[])
        self.device = device
        self.capacity = 0
        self.generation = 0  # changes whenever storage moves
        self._fixed = fixed
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self.reset(batch)

    def reset(self, batch: int | None = None) -> None:
        """Forget every row. A fixed cache keeps its storage where that has enough rows."""
        batch = len(self.lengths) if batch is None else batch
        if self._keys and (not self._fixed or self._keys[0].shape[0] < batch):
            self._keys, self._values, self.capacity = [], [], 0
            self.generation += 1
        self.lengths = [0] * batch
        self.positions = torch.zeros((batch, 0), dtype=torch.long, device=self.device)
        self.span = 0
        self.uniform_start: int | None = None

    def reserve(self, length: int) -> None:
        """Make room for rows of `length` positions (in whole blocks where shapes are fixed)."""
        if length > self.capacity:
            self.capacity = _whole_blocks(length) if self._fixed else length
            self.generation += 1
            self._keys = [_grown(keys, self.capacity) for keys in self._keys]
            self._values = [_grown(values, self.capacity) for values in self._values]

    def begin(self, width: int) -> None:
        """Fix where the next `width` positions of every row will be written."""
        fixed = self._fixed and width <= STEP_WIDTH
        self.span = max(self.lengths) + width
        if self.span > self.capacity:
            self.reserve(_whole_blocks(self.span))
        # Rows that stand at one length (a batch of one, above all) are written as a slice.
        uniform = min(self.lengths) == max(self.lengths) and not fixed
        self.uniform_start = self.lengths[0] if uniform else None
        start = torch.tensor(self.lengths, device=self.device)
        self.positions = start[:, None] + torch.arange(width, device=self.device)
        if fixed:
            self.span = _whole_blocks(self.span)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [B, H, S, D] at each row's own positions; return all up to the longest row."""
        if layer_idx == len(self._keys):
            self._keys.append(_empty_like(key_states, self.capacity))
            self._values.append(_empty_like(value_states, self.capacity))
        B = key_states.shape[0]
        keys, values = self._keys[layer_idx][:B], self._values[layer_idx][:B]
        if self.uniform_start is not None:
            keys[:, :, self.uniform_start : self.span] = key_states
            values[:, :, self.uniform_start : self.span] = value_states
        else:
            row = torch.arange(B, device=keys.device)[:, None]
            positions = self.positions.to(keys.device)
            keys[row, :, positions] = key_states.transpose(1, 2)
            values[row, :, positions] = value_states.transpose(1, 2)
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
        self.lengths = [self.lengths[row] for row in rows]
        if list(rows) == list(range(len(rows))):
            return
        index = torch.tensor(rows, device=self.device)
        for states in (*self._keys, *self._values):
            states[: len(rows)] = states.index_select(0, index.to(states.device))

    def visible(self, window: int | None = None) -> Tensor:
        """What each new position attends to: bool [B, 1, S, span], causal, within the window."""
        kv = torch.arange(self.span, device=self.device)
        query = self.positions[:, None, :, None]
        seen = kv <= query
        return seen if window is None else seen & (kv > query - window)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return max(self.lengths)


def _whole_blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _empty_like(states: Tensor, capacity: int) -> Tensor:
    B, H, _, D = states.shape
    # Zeros, not garbage: a masked position's weight is 0, and 0 · NaN would be NaN.
    return states.new_zeros((B, H, capacity, D))


def _grown(states: Tensor, capacity: int) -> Tensor:
    larger = _empty_like(states, capacity)
    larger[:, :, : states.shape[2]] = states
    return larger
