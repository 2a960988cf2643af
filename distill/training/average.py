"""A moving average of the draft's weights: what is measured and written in their place."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """average ← d · average + (1 − d) · weights after every step, d = min(decay, (1 + n)/(10 + n)).

    n counts steps: a short run would otherwise be averaged with the weights it began with.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float):
        self._parameters = list(parameters)
        self._decay = decay
        self._average: list[Tensor] = []
        self._steps = 0

    def update(self) -> None:
        weights = [p.detach() for p in self._parameters]
        if not self._average:
            self._average = [weight.clone() for weight in weights]
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self._steps += 1
        get_ema_multi_avg_fn(decay)(self._average, weights, self._steps)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The average in the place of the weights; afterwards they are back, bit for bit."""
        if not self._average:
            yield
            return
        kept = [p.detach().clone() for p in self._parameters]
        self._put(self._average)
        try:
            yield
        finally:
            self._put(kept)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)

    def state_dict(self) -> dict[str, object]:
        return {"average": self._average, "steps": self._steps}

    def load_state_dict(self, state: dict) -> None:
        pairs = zip(self._parameters, state["average"], strict=bool(state["average"]))
        self._average = [value.to(p.device, copy=True) for p, value in pairs]
        self._steps = state["steps"]
