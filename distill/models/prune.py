"""A draft cut out of the target: fewer layers, head groups, channels and stream dimensions.

Width of the residual stream: RMSNorm commutes with rotations once its gain is folded into the
matrices that read it, so the stream may be turned into the principal axes of its calibration
states and the last ones dropped (SliceGPT, Ashkboos et al. 2024, §3.1-3.3). One rotation serves
all layers, since a different one per block would need matrices on the skip path, which no server's
config of the family has. Layers, whole key-value groups and MLP channels are kept by importance
(`distill.models.importance`). What is left is fitted to the target by `distill.models.repair`.

Shapes: V vocabulary rows, D target width, d draft width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from distill.models.importance import (
    SILENCE,
    Calibration,
    Importance,
    inputs_of,
    measure_importance,
    reading,
    stack,
    stream_norms,
)
from distill.models.repair import Part, Stage, Trace, repair

_HEAD_NORMS = ("q_norm", "k_norm")
_TOKENS, _IMPORTANCE_TOKENS, _CONTEXT = 32_768, 4096, 1024
"""Calibration tokens for the fits, for the ranking, and in one sequence: bounds memory and time."""


@dataclass(frozen=True)
class Basis:
    """Draft stream y = x @ write, target stream x ≈ y @ read, of equal root mean square.

    write [D, d], read [d, D]; final [D, d] takes the place of `write` for the last norm's input.
    """

    write: Tensor
    read: Tensor
    final: Tensor


@torch.no_grad()
def prune(draft: PreTrainedModel, calibration: Calibration) -> None:
    """Fill `draft` (float32, on the CPU) from the calibration's target, on the target's device.

    The draft's sizes are a part of the target's (`distill.models.sizes.check_cut`). With all of
    them it computes the target's function, and a part that contributed nothing leaves no trace
    when cut; but for a tied matrix whose final norm has unequal gains: no rotation makes it both
    embedding and head, and the last writer is fitted to make up for it.
    """
    target, training = calibration.target, draft.training
    draft.to(target.device).eval()  # pyright: ignore[reportArgumentType, reportCallIssue]
    sequences = list(_bounded(calibration.sequences, _TOKENS))
    few = list(_bounded(sequences, _IMPORTANCE_TOKENS))
    importance = measure_importance(Calibration(target, few))
    layers = _largest(importance.layers, draft.config.num_hidden_layers).tolist()
    norms = stream_norms(target, layers)
    # In the target's dtype on the CPU: every kept stream of every calibration token.
    traces = [
        Trace(ids, [x.cpu() for x in inputs_of(target, norms, ids)])
        for ids in reading(sequences, "reading the target for the draft's start")
    ]
    basis = _basis(target, draft.config, traces)
    stages = list(_stages(draft, target, layers, importance))
    _copy_layers(stages, basis)
    _copy_head_norms(draft, target, layers)
    _copy_ends(draft, target, basis)
    repair(draft, stages, [basis.write] * (len(stages) - 1) + [basis.final], traces)
    draft.cpu().train(training)  # pyright: ignore[reportCallIssue]


def _bounded(sequences: Iterable[Tensor], tokens: int) -> Iterator[Tensor]:
    left = tokens
    for ids in sequences:
        if left <= 0:
            return
        part = ids[:, : min(left, _CONTEXT)]
        left -= part.numel()
        yield part


def _largest(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest, in order."""
    return scores.topk(count).indices.sort().values


def _basis(target: PreTrainedModel, config: PretrainedConfig, traces: list[Trace]) -> Basis:
    """Principal axes of the streams; the target's own axes where all are kept."""
    full, width = target.config.hidden_size, config.hidden_size
    if width == full:
        same = torch.eye(full, device=target.device)
        return Basis(same, same, same)
    moment = _moment(traces, target.device)
    axes = torch.linalg.eigh(moment).eigenvectors.flip(1)[:, :width].float()
    scale = (width / full) ** 0.5
    write = axes * scale
    tied = config.tie_word_embeddings
    return Basis(write, axes.T / scale, _tied_final(target, axes) * scale if tied else write)


def _moment(traces: list[Trace], device: torch.device) -> Tensor:
    """Sum of x x^T over tokens and norms, each x of unit root mean square; float64 [D, D]."""
    total: Tensor | None = None
    for trace in traces:
        for stream in trace.streams:
            x = stream.to(device).float()
            unit = x * x.square().mean(-1, keepdim=True).clamp_min(SILENCE).rsqrt()
            product = (unit.T @ unit).double()
            total = product if total is None else total + product
    if total is None:
        raise ValueError("no sequence to measure the target's activations on")
    return total


def _tied_final(target: PreTrainedModel, axes: Tensor) -> Tensor:
    """Map [D, d] of the final stream x to the z with E axes mean(g) z nearest to E diag(g) x.

    E [V, D] is the tied matrix, g the final norm's gain: least squares over the vocabulary.
    """
    matrix, gain = stack(target).embed_tokens.weight.float(), stack(target).norm.weight.float()
    inner = axes.T @ (matrix.T @ matrix)
    return (torch.linalg.solve(inner @ axes, inner) * gain).T / gain.mean()


def _stages(
    draft: PreTrainedModel, target: PreTrainedModel, layers: list[int], importance: Importance
) -> Iterator[Stage]:
    """Attention and MLP of each kept layer, with what is kept of them."""
    config = draft.config
    group = config.num_attention_heads // config.num_key_value_heads
    for own, index in zip(stack(draft).layers, layers, strict=True):
        source = stack(target).layers[index]
        kept = _largest(importance.groups[index], config.num_key_value_heads)
        values = _rows(kept, own.self_attn.head_dim)
        queries = _rows(kept, own.self_attn.head_dim * group)
        channels = _largest(importance.channels[index], config.intermediate_size)
        rows = {"q_proj": queries, "k_proj": values, "v_proj": values}
        yield Stage(
            source.input_layernorm,
            _parts(own.self_attn, source.self_attn, rows),
            *_parts(own.self_attn, source.self_attn, {"o_proj": queries}),
        )
        rows = {"gate_proj": channels, "up_proj": channels}
        yield Stage(
            source.post_attention_layernorm,
            _parts(own.mlp, source.mlp, rows),
            *_parts(own.mlp, source.mlp, {"down_proj": channels}),
        )


def _parts(own: nn.Module, source: nn.Module, kept: dict[str, Tensor]) -> tuple[Part, ...]:
    return tuple(Part(getattr(own, n), getattr(source, n), rows) for n, rows in kept.items())


def _rows(blocks: Tensor, size: int) -> Tensor:
    """Return the rows of whole blocks of `size`."""
    return (blocks[:, None] * size + torch.arange(size)).flatten()


def _copy_layers(stages: list[Stage], basis: Basis) -> None:
    """Slice and turn every matrix; the norms' gains go into what reads them and stay 1."""
    for stage in stages:
        gain = stage.norm.weight.float()
        read, write = basis.read.T.to(gain.device), basis.write.T.to(gain.device)
        for part in stage.readers:
            kept = part.kept.to(gain.device)
            part.own.weight.copy_((part.source.weight[kept].float() * gain) @ read)
            if part.own.bias is not None:
                part.own.bias.copy_(part.source.bias[kept])
        own, source, kept = stage.writer.own, stage.writer.source, stage.writer.kept
        own.weight.copy_(write @ source.weight[:, kept.to(gain.device)].float())
        if own.bias is not None:
            own.bias.copy_(write @ source.bias.float())


def _copy_head_norms(draft: PreTrainedModel, target: PreTrainedModel, layers: list[int]) -> None:
    """Qwen 3 norms queries and keys: one gain for all heads, so it is whole in any of them."""
    for own, index in zip(stack(draft).layers, layers, strict=True):
        for name in _HEAD_NORMS:
            if hasattr(own.self_attn, name):
                norm = getattr(stack(target).layers[index].self_attn, name)
                getattr(own.self_attn, name).weight.copy_(norm.weight)


def _copy_ends(draft: PreTrainedModel, target: PreTrainedModel, basis: Basis) -> None:
    """Embedding, final norm and head."""
    embedding, gain = stack(target).embed_tokens.weight.float(), stack(target).norm.weight.float()
    stack(draft).embed_tokens.weight.copy_(embedding @ basis.write.to(embedding.device))
    if draft.config.tie_word_embeddings:
        full, width = basis.write.shape
        stack(draft).norm.weight.copy_(gain if full == width else gain.mean() * full / width)
        return
    head: Any = target.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    own: Any = draft.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    own.weight.copy_(
        (head.weight.float() * gain.to(head.weight.device)) @ basis.read.T.to(head.weight.device)
    )
