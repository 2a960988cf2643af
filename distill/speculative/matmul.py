"""Linear layers for the few rows of a decode step.

Shapes: B rows, S new positions.
"""

from collections import Counter
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distill.speculative.matmul_form import (
    FEW_ROWS,
    FORMS,
    WIDE_FORMS,
    Chosen,
    choose_forms,
    multiply_wide,
)

# Up to this many elements a bf16 weight may have an fp32 copy: calling a bf16 product costs 25 µs,
# an fp32 one next to nothing, and twice the bytes are still few.
SMALL_WEIGHT = 2**18
CACHE_LINE = 64


class Linear(NamedTuple):
    """A linear layer's weight [out, in] and bias, and the form of its product for few rows.

    wide: a small bf16 weight in fp32.
    """

    weight: Tensor
    bias: Tensor | None
    wide: Tensor | None
    forms: Chosen

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> "Linear":
        small = weight.dtype == torch.bfloat16 and weight.numel() <= SMALL_WEIGHT
        wide = weight.float() if small and weight.device.type == "cpu" else None
        return cls(weight, bias, wide, choose_forms(weight, wide))

    def __call__(self, x: Tensor) -> Tensor:
        """[B, S, in] -> [B, S, out]."""
        B, S, width = x.shape
        form = self.forms[B * S - 1] if B * S <= FEW_ROWS else "linear"
        if form == "linear":
            return F.linear(x, self.weight, self.bias)
        flat = x.reshape(B * S, width)
        if form in WIDE_FORMS:
            assert self.wide is not None
            result = multiply_wide(form, self.wide, flat)
        else:
            result = FORMS[form](self.weight, flat)
        result = result.view(B, S, -1)
        return result if self.bias is None else result + self.bias

    def overwritten(self, other: "Linear") -> "Linear":
        """`other`, lying where this one lies: captured graphs go on reading it there."""
        self.weight.copy_(other.weight)
        if self.bias is not None and other.bias is not None:
            self.bias.copy_(other.bias)
        return Linear(self.weight, self.bias, other.wide, other.forms)


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
