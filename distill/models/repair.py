"""Least squares after a cut: every matrix of the draft is refitted to what the target computes.

In order of computation, each sees the draft's own inputs, errors of the earlier ones included:
matrices that read the stream are fitted to the target's outputs, matrices that write it to the
target's stream at the next kept norm. So a writer also stands for the layers dropped after it.
Each fit is a ridge regression of what is missing, so an exact cut stays as it is.

Shapes: S tokens of one sequence, n inputs and m outputs of a matrix, D target width, d draft width.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.models.importance import SILENCE, inputs_of, stream_norms
from distill.progress import Progress

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
class Trace:
    """One calibration sequence: ids [1, S], the target's stream [S, D] at each kept norm in turn.

    The last stream is the final norm's.
    """

    ids: Tensor
    streams: Sequence[Tensor]


@dataclass(frozen=True)
class _Error:
    """What a matrix is given [S, n] and what its output lacks [S, m]."""

    matrix: nn.Linear
    given: Tensor
    missing: Tensor


def repair(
    draft: PreTrainedModel,
    stages: Sequence[Stage],
    turns: Sequence[Tensor],
    traces: Sequence[Trace],
) -> None:
    """Refit `draft` in place. turns[i] [D, d] makes the draft's stream after stages[i]."""
    norms = stream_norms(draft, range(draft.config.num_hidden_layers))
    with Progress("fitting the draft", len(stages)) as progress:
        for at, (stage, turn) in enumerate(zip(stages, turns, strict=True)):
            _refit(error for trace in traces for error in _reading(draft, stage, trace, at))
            _refit(_writing(draft, stage, trace, norms[at + 1], turn, at) for trace in traces)
            progress.advance(1)


def _reading(draft: PreTrainedModel, stage: Stage, trace: Trace, at: int) -> Iterator[_Error]:
    (given,) = inputs_of(draft, [stage.readers[0].own], trace.ids)
    normed = stage.norm(trace.streams[at].to(stage.norm.weight.device))
    for part in stage.readers:
        wanted = part.source(normed).float()[:, part.kept.to(normed.device)]
        yield _Error(part.own, given, wanted.to(given.device) - part.own(given))


def _writing(
    draft: PreTrainedModel, stage: Stage, trace: Trace, norm: nn.Module, turn: Tensor, at: int
) -> _Error:
    """Each token weighs as the next norm sees it: by the stream's inverse root mean square."""
    given, found = inputs_of(draft, [stage.writer.own, norm], trace.ids)
    wanted = trace.streams[at + 1].to(turn.device).float()
    weight = wanted.square().mean(-1, keepdim=True).clamp_min(SILENCE).rsqrt()
    return _Error(stage.writer.own, given * weight, (wanted @ turn - found) * weight)


def _refit(errors: Iterable[_Error]) -> None:
    """Add the ridge regression of `missing` on `given` to each matrix (its bias stays)."""
    moments: dict[nn.Linear, tuple[Tensor, Tensor]] = {}
    for error in errors:
        gram = (error.given.T @ error.given).double()
        cross = (error.given.T @ error.missing).double()
        if error.matrix in moments:
            known = moments[error.matrix]
            gram, cross = gram + known[0], cross + known[1]
        moments[error.matrix] = gram, cross
    for matrix, (gram, cross) in moments.items():
        # The floor keeps inputs that never differ from zero solvable.
        ridge = _RIDGE * gram.diagonal().mean() + torch.finfo(torch.float32).tiny
        gram.diagonal().add_(ridge)
        solved = torch.cholesky_solve(cross, torch.linalg.cholesky(gram))
        matrix.weight.add_(solved.T)
