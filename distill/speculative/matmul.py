"""Linear layers for the few rows of a decode step.

Shapes: B rows, S new positions.
"""

from collections import Counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Up to this many rows a bf16 product on a CPU is bound by reading the weight.
FEW_ROWS = 16
# Up to this many elements it is bound by neither: calling a bf16 product costs 25 µs there, an
# fp32 one next to nothing, and twice the bytes are still few.
SMALL_WEIGHT = 2**18
CACHE_LINE = 64


class Linear(NamedTuple):
    """A linear layer's weight [out, in] and bias, and the weight in fp32 where that is faster."""

    weight: Tensor
    bias: Tensor | None = None
    wide: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> "Linear":
        small = _narrow(weight) and weight.numel() <= SMALL_WEIGHT
        return cls(weight, bias, weight.float() if small else None)

    def __call__(self, x: Tensor) -> Tensor:
        """[B, S, in] -> [B, S, out]."""
        if x.shape[0] * x.shape[1] > FEW_ROWS or not _narrow(self.weight):
            return F.linear(x, self.weight, self.bias)
        if self.wide is None:
            result = _few_rows(x, self.weight)
        else:
            # bf16 products are summed in fp32 too, so this rounds where they round.
            result = F.linear(x.float(), self.wide).to(x.dtype)
        return result if self.bias is None else result + self.bias

    def overwritten(self, other: "Linear") -> "Linear":
        """`other`, lying where this one lies: captured graphs go on reading it there."""
        self.weight.copy_(other.weight)
        if self.bias is not None and other.bias is not None:
            self.bias.copy_(other.bias)
        return Linear(self.weight, self.bias, other.wide)


def _narrow(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu"


def _few_rows(x: Tensor, weight: Tensor) -> Tensor:
    """[B, S, in] times weight [out, in] transposed -> [B, S, out].

    In bf16 on a CPU `F.linear` re-orders the weight on every call; for few rows the products below
    read it as it lies, at up to twice the speed.
    """
    B, S, _ = x.shape
    if B * S == 1:
        return torch.mv(weight, x.view(-1)).view(1, 1, -1)
    return torch.mm(weight, x.reshape(B * S, -1).t()).t().view(B, S, -1)


def align(*modules: nn.Module) -> None:
    """Move weights on a CPU to cache-line boundaries, in place; no value or parameter changes.

    safetensors maps a file as it lies, mostly 8 bytes past a boundary: reading that is slower by
    about an eighth. Storage that two parameters share is left alone.
    """
    parameters = {id(p): p for module in modules for p in module.parameters()}.values()
    owners = Counter(p.untyped_storage().data_ptr() for p in parameters)
    for parameter in parameters:
        alone = owners[parameter.untyped_storage().data_ptr()] == 1
        if parameter.device.type == "cpu" and parameter.data_ptr() % CACHE_LINE and alone:
            # Decoding is in inference mode, but what is made in it never trains: drafts do.
            with torch.inference_mode(False):
                parameter.data = parameter.detach().clone()
