"""The fused loss is timed beside its matrix products alone, which shows what the rest costs.

T tokens, V vocabulary, d draft's width, D target's, C tokens of a chunk.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distill.evaluate.interleave import there_and_back
from distill.losses import Head, HiddenSignal, fused_loss
from distill.losses.fused import chunk_tokens
from distill.losses.mixture import BY_NAME, Mixture
from distill.process import return_freed_memory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shapes:
    """Sizes of a loss; compute is the dtype of its products.

    The draft's states and head are fp32, as in training.
    """

    tokens: int
    vocabulary_size: int
    width: int
    target_width: int
    chunk_size: int
    compute: torch.dtype


@dataclass(frozen=True)
class LossTimes:
    """Seconds of each pass; those at one place were measured next to each other."""

    products: list[float]
    loss: list[float]

    @property
    def shares(self) -> list[float]:
        """Time of the products alone over the loss's; 1: the loss costs nothing besides."""
        return [ours / whole for ours, whole in zip(self.products, self.loss, strict=True)]

    @property
    def undisturbed_share(self) -> float:
        """The share of the fastest passes, which other jobs on the machine disturbed least."""
        return min(self.products) / min(self.loss)


@dataclass(frozen=True)
class LossLine:
    """One line of the table: what was timed, by the names a reader knows, and the times."""

    divergence: str
    shapes: Shapes
    times: LossTimes

    @property
    def compute(self) -> str:
        return str(self.shapes.compute).removeprefix("torch.")

    def numbers(self) -> dict[str, Any]:
        """What benchmark.json holds of the line."""
        return {
            "divergence": self.divergence,
            "compute": self.compute,
            "shares": self.times.shares,
            "ids": self.shapes.vocabulary_size,
            "seconds": self.times.loss,
            "undisturbed_share": self.times.undisturbed_share,
        }


def time_losses(
    *,
    vocabulary_size: int,
    width: int,
    target_width: int,
    tokens: int,
    chunk_size: int | None,
    dtypes: Iterable[torch.dtype],
    compiled: bool,
    repetitions: int,
) -> list[LossLine]:
    """Time every divergence in every dtype, for one pair of heads."""
    lines = []
    for dtype in sorted(dtypes, key=str):
        shapes = Shapes(
            tokens=tokens,
            vocabulary_size=vocabulary_size,
            width=width,
            target_width=target_width,
            chunk_size=chunk_tokens(width, chunk_size),
            compute=dtype,
        )
        for name in BY_NAME:
            times = time_loss(shapes, Mixture.of({name: 1.0}), compiled, repetitions)
            lines.append(LossLine(name, shapes, times))
            return_freed_memory()
            log.info("benchmark: %s in %s done", name, lines[-1].compute)
    return lines


def time_loss(shapes: Shapes, divergence: Mixture, compiled: bool, repetitions: int) -> LossTimes:
    """Time the products alone and the loss with its gradients, 2 · repetitions times, A B B A.

    compiled: as in ``fused_loss``.
    """
    arms = (_products(shapes), _loss(shapes, divergence, compiled))
    for arm in arms * 2:  # the second pass of the loss still asks the system for memory
        arm()
    found: tuple[list[float], list[float]] = ([], [])
    for _, number in there_and_back((0, 1), 2 * repetitions):
        start = time.perf_counter()
        arms[number]()
        found[number].append(time.perf_counter() - start)
    return LossTimes(*found)


def _tensors(shapes: Shapes) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draft's states [T, d] and head [V, d], target's states [T, D] and head [V, D]."""
    torch.manual_seed(0)
    T, V, d, D = shapes.tokens, shapes.vocabulary_size, shapes.width, shapes.target_width
    weight, target_weight = torch.randn(V, d).mul_(d**-0.5), torch.randn(V, D).mul_(D**-0.5)
    return torch.randn(T, d), weight, torch.randn(T, D), target_weight


def _loss(shapes: Shapes, divergence: Mixture, compiled: bool) -> Callable[[], None]:
    states, weight, target_states, target_weight = _tensors(shapes)
    states.requires_grad_()
    weight.requires_grad_()
    teacher = Head(target_weight.to(shapes.compute))

    def run() -> None:
        loss, _ = fused_loss(
            states,
            Head(weight),
            HiddenSignal(target_states.to(shapes.compute), teacher),
            divergence=divergence,
            chunk_size=shapes.chunk_size,
            compute_dtype=shapes.compute,
            compiled=compiled,
        )
        loss.backward()
        states.grad = weight.grad = None

    return run


def _products(shapes: Shapes) -> Callable[[], None]:
    """Both logits, and the gradients by states and head, chunk by chunk into the same buffers."""
    states, weight, target_states, target_weight = (
        tensor.to(shapes.compute) for tensor in _tensors(shapes)
    )
    C, V = min(shapes.chunk_size, shapes.tokens), shapes.vocabulary_size
    logits, teacher_logits = torch.empty(2, C, V, dtype=shapes.compute)
    states_gradient, weight_gradient = torch.empty_like(states), torch.empty_like(weight)

    def run() -> None:
        for first in range(0, shapes.tokens, C):
            chunk = states[first : first + C]
            n = len(chunk)
            torch.mm(chunk, weight.t(), out=logits[:n])
            torch.mm(target_states[first : first + C], target_weight.t(), out=teacher_logits[:n])
            torch.mm(logits[:n], weight, out=states_gradient[first : first + n])
            weight_gradient.addmm_(logits[:n].t(), chunk, beta=1 if first else 0)

    return run
