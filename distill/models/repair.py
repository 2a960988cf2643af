"""Least squares after a cut: every matrix of the draft is refitted to what the target computes.

In order of computation, each sees the draft's own inputs, errors of the earlier ones included:
matrices that read the stream are fitted to the target's outputs, matrices that write it to the
target's stream at the next kept norm. So a writer also stands for the layers dropped after it.
Each fit is a ridge regression of what is missing, so an exact cut stays as it is.

Shapes: T calibration tokens, n inputs, m outputs, D target width, d draft width.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.models.importance import inputs_of, stack, stream_norms

_RIDGE = 1e-3
"""Relative to the mean squared input."""


@dataclass(frozen=True)
class Part:
    """One matrix of the draft and its source. kept: output rows of a reader, inputs of a writer."""

    own: nn.Linear
    source: nn.Linear
    kept: Tensor


@dataclass(frozen=True)
class Stage:
    """Attention or MLP of one kept layer: the target's norm, what reads it, what writes back."""

    norm: Any
    readers: tuple[Part, ...]
    writer: Part


@dataclass(frozen=True)
class Streams:
    """The target's residual stream at each kept norm and the final one: [sequence][norm] [S, D]."""

    values: Sequence[Sequence[Tensor]]

    def moment(self, device: torch.device) -> Tensor:
        """Mean of x x^T over tokens and norms, each x of unit root mean square; float64 [D, D]."""
        total, count = torch.zeros((), dtype=torch.float64, device=device), 0
        for sequence in self.values:
            for stream in sequence:
                unit = _unit(stream.to(device).float())
                total = total + (unit.T @ unit).double()
                count += len(unit)
        return total / count


def repair(
    draft: PreTrainedModel,
    target: PreTrainedModel,
    stages: Sequence[Stage],
    write: Tensor,
    final: Tensor,
    streams: Streams,
    sequences: Sequence[Tensor],
) -> None:
    """Refit `draft` in place; `write` and `final` [D, d] turn a target's stream into the draft's."""
    norms = stream_norms(draft, range(draft.config.num_hidden_layers))
    pairs = list(zip(sequences, streams.values, strict=True))
    for at, stage in enumerate(stages):
        def reading(stage=stage, at=at):
            for ids, values in pairs:
                (given,) = inputs_of(draft, [stage.readers[0].own], ids)
                source = values[at].to(stage.norm.weight.device)
                normed = stage.norm(source)
                for part in stage.readers:
                    error = part.source(normed).float()[:, part.kept] - part.own(given)
                    yield part.own, given, error
        _refit(reading())
        turn = final if at + 1 == len(stages) else write
        def writing(stage=stage, at=at, turn=turn):
            for ids, values in pairs:
                given, stream = inputs_of(draft, [stage.writer.own, norms[at + 1]], ids)
                wanted = values[at + 1].to(turn.device).float()
                weight = wanted.square().mean(-1, keepdim=True).rsqrt()
                yield stage.writer.own, given * weight, (wanted @ turn - stream) * weight
        _refit(writing())


def _refit(errors) -> None:
    grams, crosses = {}, {}
    for linear, x, e in errors:
        grams[linear] = grams.get(linear, 0) + (x.T @ x).double()
        crosses[linear] = crosses.get(linear, 0) + (x.T @ e).double()
    for linear, gram in grams.items():
        linear.weight.add_(_ridge(gram, crosses[linear]).T)

def _ridge(gram, cross):
    ridge = _RIDGE * gram.diagonal().mean()
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.cholesky_solve(cross, torch.linalg.cholesky(gram + ridge * eye)).float()


def _unit(stream: Tensor) -> Tensor:
    return stream * stream.square().mean(-1, keepdim=True).rsqrt()
