"""A draft cut out of the target: fewer layers, head groups, channels and stream dimensions.

Width of the residual stream: RMSNorm commutes with rotations once its gain is folded into the
matrices that read it, so the stream may be turned into the principal axes of its calibration
states and the last ones dropped (SliceGPT, Ashkboos et al. 2024, §3.1-3.3). One rotation serves
all layers, since a different one per block would need matrices on the skip path, which no server's
config of the family has. Layers, whole key-value groups and MLP channels are kept by importance
(`distill.models.importance`). What is left is fitted to the target by `distill.models.repair`.

Shapes: V vocabulary rows, D target width, d draft width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.models.importance import (
    Calibration,
    Importance,
    inputs_of,
    measure_importance,
    stack,
    stream_norms,
)
from distill.models.repair import Part, Stage, Streams, repair

_TOKENS, _CONTEXT = 32_768, 1024
"""Calibration is cut to so many tokens, in sequences of so many: the kept streams stay in memory."""


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

    The draft's sizes may be at most the target's, its head groups like the target's (see
    `distill.models.sizes.check_prunable`). With all the target's sizes it computes the same
    function. A cut part that contributed nothing changes nothing, but for a tied matrix whose final
    norm has unequal gains: no rotation of it is both embedding and head.
    """
    target = calibration.target
    draft.to(target.device)  # pyright: ignore[reportArgumentType]
    calibration = Calibration(target, list(_bounded(calibration.sequences)))
    importance = measure_importance(calibration)
    layers = _largest(importance.layers, draft.config.num_hidden_layers).tolist()
    streams = Streams(
        [
            [x.cpu() for x in inputs_of(target, stream_norms(target, layers), ids)]
            for ids in calibration.sequences
        ]
    )
    fill(draft, target, importance, layers, streams, calibration.sequences)
    draft.cpu()  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def fill(draft, target, importance, layers, streams, sequences) -> None:
    basis = _basis(target, streams, draft.config)
    stages = list(_stages(draft, target, layers, importance))
    _copy(draft, target, stages, basis)
    repair(draft, target, stages, basis.write, basis.final, streams, sequences)


def _bounded(sequences) -> Iterator[Tensor]:
    left = _TOKENS
    for ids in sequences:
        if left <= 0:
            return
        part = ids[:, : min(left, _CONTEXT)]
        left -= part.numel()
        yield part


def _largest(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the `count` largest, in order."""
    return scores.topk(count).indices.sort().values


def _basis(target, streams, config) -> Basis:
    """Principal axes of the unit streams; the target's own axes where all are kept."""
    matrix = stack(target).embed_tokens.weight.float()
    full, width = matrix.shape[1], config.hidden_size
    if width == full:
        same = torch.eye(full, device=matrix.device)
        return Basis(same, same, same)
    axes = torch.linalg.eigh(streams.moment(matrix.device)).eigenvectors.flip(1)[:, :width].float()
    scale = (width / full) ** 0.5
    write = axes * scale
    final = write
    if config.tie_word_embeddings:
        # The stream whose logits through the rotated embedding are nearest to the target's.
        gain = stack(target).norm.weight.float()
        gram = matrix.T @ matrix
        inner = axes.T @ gram
        final = scale / gain.mean() * (torch.linalg.solve(inner @ axes, inner) * gain).T
    return Basis(write, axes.T / scale, final)


def _stages(
    draft: PreTrainedModel, target: PreTrainedModel, layers: list[int], importance: Importance
) -> Iterator[Stage]:
    config = draft.config
    group = config.num_attention_heads // config.num_key_value_heads
    for own, index in zip(stack(draft).layers, layers, strict=True):
        source = stack(target).layers[index]
        kept = _largest(importance.groups[index], config.num_key_value_heads)
        heads = _rows(kept, own.self_attn.head_dim)
        queries = _rows(kept, own.self_attn.head_dim * group)
        ours, theirs = own.self_attn, source.self_attn
        for name in ("q_norm", "k_norm"):
            if hasattr(theirs, name):
                getattr(ours, name).weight.copy_(getattr(theirs, name).weight)
        yield Stage(
            source.input_layernorm,
            (
                Part(ours.q_proj, theirs.q_proj, queries),
                Part(ours.k_proj, theirs.k_proj, heads),
                Part(ours.v_proj, theirs.v_proj, heads),
            ),
            Part(ours.o_proj, theirs.o_proj, queries),
        )
        ours, theirs = own.mlp, source.mlp
        channels = _largest(importance.channels[index], config.intermediate_size)
        yield Stage(
            source.post_attention_layernorm,
            (
                Part(ours.gate_proj, theirs.gate_proj, channels),
                Part(ours.up_proj, theirs.up_proj, channels),
            ),
            Part(ours.down_proj, theirs.down_proj, channels),
        )


def _rows(blocks: Tensor, size: int) -> Tensor:
    return (blocks[:, None] * size + torch.arange(size)).flatten()


def _copy(
    draft: PreTrainedModel, target: PreTrainedModel, stages: list[Stage], basis: Basis
) -> None:
    """Slice and turn every matrix; the layers' norms keep a gain of 1."""
    for stage in stages:
        gain = stage.norm.weight.float()
        for part in stage.readers:
            rows = part.source.weight.float()[part.kept.to(gain.device)]
            part.own.weight.copy_((rows * gain) @ basis.read.T.to(gain.device))
            if part.own.bias is not None:
                part.own.bias.copy_(part.source.bias[part.kept])
        writer, turn = stage.writer, basis.write.T.to(gain.device)
        columns = writer.source.weight.float()[:, writer.kept.to(gain.device)]
        writer.own.weight.copy_(turn @ columns)
        if writer.own.bias is not None:
            writer.own.bias.copy_(turn @ writer.source.bias.float())
    embedding = stack(target).embed_tokens.weight.float()
    stack(draft).embed_tokens.weight.copy_(embedding @ basis.write)
    gain = stack(target).norm.weight.float()
    if draft.config.tie_word_embeddings:
        full, width = basis.write.shape
        stack(draft).norm.weight.copy_(gain if full == width else gain.mean() * full / width)
    else:
        head: nn.Module = target.get_output_embeddings()
        draft.get_output_embeddings().weight.copy_((head.weight.float() * gain) @ basis.read.T)
