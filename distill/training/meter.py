"""Ratios of sums: what is logged never depends on how tokens fell into batches or ranks."""

import torch
from torch import Tensor


class Meter:
    """Adds up metric sums without waiting for the device, and reads them out as means per token.

    `divergence` is divided by the tokens' summed `weight`, where there is one.
    """

    def __init__(self, names: tuple[str, ...] = ("divergence", "alpha", "agreement")) -> None:
        self._names = names
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: dict[str, Tensor]) -> None:
        if "tokens" in sums:
            sums = {"weight": sums["tokens"]} | sums
        for name, value in sums.items():
            value = torch.as_tensor(value).detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def read(self, device: torch.device) -> dict[str, float]:
        """Means per token over all ranks since the last reading, then start over.

        Returns:
            the meter's names (per token) and tokens (a count); all 0 when there was no token.
        """
        zero = torch.zeros((), dtype=torch.double, device=device)
        names = (*self._names, "weight", "tokens")
        sums = torch.stack([self._sums.get(name, zero).to(device) for name in names])
        self._sums = {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(sums)
        *totals, weight, tokens = sums.tolist()
        means = dict(zip(self._names, (total / max(tokens, 1.0) for total in totals), strict=True))
        if weight > 0 and "divergence" in means:
            means["divergence"] *= max(tokens, 1.0) / weight
        return means | {"tokens": tokens}
