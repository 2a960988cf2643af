"""Ratios of sums: what is logged never depends on how tokens fell into batches or ranks."""

import torch
from torch import Tensor

METRICS = ("divergence", "alpha", "agreement")


class Meter:
    """Adds up metric sums without waiting for the device, and reads them out as means per token."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            value = torch.as_tensor(value).detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def read(self, device: torch.device) -> dict[str, float]:
        """Means per token over all ranks since the last reading; then start over. Collective.

        Returns:
            `METRICS` (means per token) and tokens (their count); all are 0 when there was no token.
        """
        zero = torch.zeros((), dtype=torch.double, device=device)
        sums = torch.stack([self._sums.get(name, zero).to(device) for name in (*METRICS, "tokens")])
        self._sums = {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        *totals, tokens = sums.tolist()
        means = {n: total / max(tokens, 1.0) for n, total in zip(METRICS, totals, strict=True)}
        return means | {"tokens": tokens}
