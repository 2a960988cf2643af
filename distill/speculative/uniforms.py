"""Random numbers that belong to a row, not to the batch it happens to be decoded in."""

import random
from collections.abc import Sequence

import torch
from torch import Tensor


class Uniforms:
    """One stream of uniform numbers per row, seeded by (seed, row id).

    A row draws the same numbers alone or in a batch, whatever its neighbours do: this is what
    makes batched and one-by-one sampling emit the same tokens.
    """

    def __init__(self, seed: int, row_ids: Sequence[int], device: torch.device):
        # A string seed is hashed (SHA-512), so neighbouring seeds give unrelated streams.
        self._streams = [random.Random(f"{seed}/{row}") for row in row_ids]
        self._device = device

    def draw(self, count: int) -> Tensor:
        """[B, count] float64 in [0, 1)."""
        numbers = [[stream.random() for _ in range(count)] for stream in self._streams]
        return torch.tensor(numbers, dtype=torch.float64, device=self._device)

    def keep(self, rows: Sequence[int]) -> None:
        self._streams = [self._streams[row] for row in rows]
