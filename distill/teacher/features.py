"""What a head reads of the target, beside what it learns from it.

B rows, S tokens a row, T supervised tokens, W the target's width, F layers that are read.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.losses.dense import HiddenSignal, Whole
from distill.losses.reduced import ReducedSignal, summarise

FEATURE_DTYPE = torch.bfloat16
"""In which features are kept: they are read, not compared, and a server has them in it too."""


@dataclass(frozen=True)
class ReadSignal(HiddenSignal):
    """The exact signal at T positions, and the target's states at all of them.

    features: [B, S, F·W], those of the lowest layer first. whole: of the signal's logits, where it
    was kept.
    """

    features: Tensor
    whole: Whole | None = None

    def reduced(self, kept: Tensor) -> ReducedSignal:
        """The signal for a draft that covers the ids `kept` [v] alone."""
        whole = self.whole or summarise(self.hidden, self.head)
        return ReducedSignal(self.hidden, self.head.rows(kept), *whole)


@contextmanager
def reading(model: PreTrainedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """Inside, a forward pass leaves the states [B, S, W] after so many decoder layers, by number.

    Of all states only these are kept. The layers are wrapped, not hooked: a compiled layer would
    keep a hook for good, and a decoding engine refuses a model with hooks.
    """
    blocks = decoder_layers(model)
    states: dict[int, Tensor] = {}
    own = {number: blocks[number - 1] for number in layers}
    for number, block in own.items():
        blocks[number - 1] = _Tap(block, number, states)
    try:
        yield states
    finally:
        for number, block in own.items():
            blocks[number - 1] = block


class _Tap(nn.Module):
    """Runs a decoder layer and keeps what comes out; asked for anything else, it is the layer."""

    def __init__(self, block: nn.Module, number: int, states: dict[int, Tensor]):
        super().__init__()
        self.block, self._number, self._states = block, number, states

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.block(*args, **kwargs)
        self._states[self._number] = output[0] if isinstance(output, tuple) else output
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The model's decoder layers.

    Raises:
        UserError: it keeps them in no list.
    """
    total = model.config.get_text_config().num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == total:
            return module
    raise UserError(
        f"{type(model).__name__} keeps its decoder layers in no list of {total} modules, so that "
        "no head can read them: use draft=auto."
    )
