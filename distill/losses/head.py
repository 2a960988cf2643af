"""An output head: hidden states [T, D] to logits [T, V]."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distill.errors import UserError


@dataclass(frozen=True)
class Head:
    """logits = cap(scale · (hidden @ weightᵀ + bias)), with cap(x) = softcap · tanh(x / softcap).

    weight [V, D], bias [V] or None. ``scale`` is Cohere's logit_scale (1 /
    Granite's logits_scaling), ``softcap`` Gemma 2's final_logit_softcapping. Rows beyond the
    tokenizer's ids are padding.
    """

    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def sliced(self, vocabulary_size: int) -> "Head":
        """The head of the first ``vocabulary_size`` ids."""
        if not 0 < vocabulary_size <= self.weight.shape[0]:
            raise UserError(
                f"vocabulary_size {vocabulary_size} is outside a head of "
                f"{self.weight.shape[0]} rows; "
                "give the number of real ids that both tokenizers share"
            )
        if vocabulary_size == self.weight.shape[0]:
            return self  # a whole slice would still cost a copy of the gradient in the backward
        bias = None if self.bias is None else self.bias[:vocabulary_size]
        return replace(self, weight=self.weight[:vocabulary_size], bias=bias)

    def rows(self, ids: Tensor) -> "Head":
        """The head of the ids [v] alone, in their order."""
        bias = None if self.bias is None else self.bias[ids]
        return replace(self, weight=self.weight[ids], bias=bias)

    def detach(self) -> "Head":
        bias = None if self.bias is None else self.bias.detach()
        return replace(self, weight=self.weight.detach(), bias=bias)

    def to(self, dtype: torch.dtype) -> "Head":
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, weight=self.weight.to(dtype), bias=bias)

    def on(self, device: torch.device) -> "Head":
        bias = None if self.bias is None else self.bias.to(device)
        return replace(self, weight=self.weight.to(device), bias=bias)

    def at(self, temperature: float) -> "Head":
        """The head whose logits are these over ``temperature``, under a soft cap too."""
        softcap = None if self.softcap is None else self.softcap / temperature
        return replace(self, scale=self.scale / temperature, softcap=softcap)

    def logits(self, hidden: Tensor) -> Tensor:
        """The plain, differentiable definition: [T, D] → [T, V]."""
        out = torch.nn.functional.linear(hidden, self.weight, self.bias) * self.scale
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)

    def logits_into(self, buffer: Tensor, hidden: Tensor) -> Tensor:
        """The same into ``buffer`` [T, V], with no allocation and no gradient."""
        if self.bias is None:
            torch.mm(hidden, self.weight.t(), out=buffer)
        else:
            torch.addmm(self.bias, hidden, self.weight.t(), out=buffer)
        if self.scale != 1.0:
            buffer.mul_(self.scale)
        if self.softcap is not None:
            buffer.div_(self.softcap).tanh_().mul_(self.softcap)
        return buffer

    def logits_gradient_(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn d/d logits into d/d(hidden @ weightᵀ + bias), in place on ``gradient``."""
        if self.softcap is not None:
            gradient.mul_(1.0 - (logits / self.softcap).square())
        return gradient.mul_(self.scale) if self.scale != 1.0 else gradient
