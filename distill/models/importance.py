"""What each part of a target contributes on calibration tokens, from forward passes alone.

Following Minitron (Muralidharan et al. 2024, "Compact Language Models via Pruning and Knowledge
Distillation", §2.2), with energies written into the residual stream in place of activation norms.
A token counts relative to the stream it writes into, which the next norm divides by: otherwise the
few tokens with massive activations (attention sinks) would decide alone.

Shapes: S tokens of one sequence, D width, L layers, G key-value groups, I channels of the MLP.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.progress import Progress

SILENCE = 1e-12
"""Floor of a squared stream: a token whose embedding is zero is not divided by zero."""


@dataclass(frozen=True)
class Calibration:
    """A loaded target and the rows to run it on, each [1, S] ids, unpadded."""

    target: PreTrainedModel
    sequences: Sequence[Tensor]


@dataclass(frozen=True)
class Importance:
    """Mean over tokens; zero exactly where a part changes nothing.

    layers [L]: 1 - cos(input, output), the block influence of ShortGPT (Men et al. 2024, §3).
    groups [L, G]: energy that a key-value head's query heads write, relative to the stream's.
    channels [L, I]: the same of each channel of the MLP.
    """

    layers: Tensor
    groups: Tensor
    channels: Tensor


def stack(model: PreTrainedModel) -> Any:
    """The decoder's `embed_tokens`, `layers` and `norm`; its submodules have no static type."""
    return model.base_model


def stream_norms(model: PreTrainedModel, layers: Iterable[int]) -> list[nn.Module]:
    """Return the norms that read the residual stream, in order; the final one is last."""
    decoder = stack(model)
    chosen = [decoder.layers[index] for index in layers]
    pairs = [(layer.input_layernorm, layer.post_attention_layernorm) for layer in chosen]
    return [norm for pair in pairs for norm in pair] + [decoder.norm]


@torch.no_grad()
def inputs_of(model: PreTrainedModel, modules: Sequence[nn.Module], ids: Tensor) -> list[Tensor]:
    """Run `ids` [1, S] and return what each of `modules` was given, [S, width]."""
    seen: dict[int, Tensor] = {}

    def watch(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        seen[id(module)] = arguments[0][0]

    handles = [module.register_forward_pre_hook(watch) for module in modules]
    try:
        model.base_model(input_ids=ids.to(model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return [seen[id(module)] for module in modules]


@torch.no_grad()
def measure_importance(calibration: Calibration) -> Importance:
    """Run the target over the calibration sequences once."""
    target, decoder = calibration.target, stack(calibration.target)
    depth = len(decoder.layers)
    norms = stream_norms(target, range(depth))
    writers = [m for layer in decoder.layers for m in (layer.self_attn.o_proj, layer.mlp.down_proj)]
    groups = target.config.num_key_value_heads
    totals, tokens = [torch.zeros(()) for _ in range(3)], 0
    for ids in reading(calibration.sequences, "ranking the target's parts"):
        seen = [x.float() for x in inputs_of(target, [*norms, *writers], ids)]
        streams, written = seen[: len(norms)], seen[len(norms) :]
        # The stream that a writer adds to and the next norm reads: one per writer, in its order.
        weights = [1 / x.square().sum(-1).clamp_min(SILENCE) for x in streams[1:]]
        found = (
            [_influence(*streams[at : at + 3 : 2]) for at in range(0, 2 * depth, 2)],
            [
                _group_energy(written[at], weights[at], writers[at].weight.float(), groups)
                for at in range(0, 2 * depth, 2)
            ],
            [
                _channel_energy(written[at], weights[at], writers[at].weight.float())
                for at in range(1, 2 * depth, 2)
            ],
        )
        for at, values in enumerate(found):
            totals[at] = totals[at] + torch.stack([value.cpu() for value in values])
        tokens += ids.numel()
    return Importance(*(total / tokens for total in totals))


def reading(sequences: Sequence[Tensor], what: str) -> Iterator[Tensor]:
    """The sequences in turn, with the progress of reading their tokens."""
    with Progress(what, sum(ids.numel() for ids in sequences)) as progress:
        for ids in sequences:
            yield ids
            progress.advance(ids.numel())


def _influence(before: Tensor, after: Tensor) -> Tensor:
    similarity = torch.cosine_similarity(before.double(), after.to(before.device).double(), dim=-1)
    return (1 - similarity).sum()


def _group_energy(heads: Tensor, weights: Tensor, matrix: Tensor, groups: int) -> Tensor:
    """Heads [S, H x head_dim] and matrix [D, H x head_dim] -> [G]."""
    parts = zip(heads.chunk(groups, -1), matrix.chunk(groups, -1), strict=True)
    return torch.stack([weights.to(x.device) @ (x @ part.T).square().sum(-1) for x, part in parts])


def _channel_energy(channels: Tensor, weights: Tensor, matrix: Tensor) -> Tensor:
    """Channels [S, I] and matrix [D, I] -> [I]."""
    return (weights.to(channels.device) @ channels.square()) * matrix.square().sum(0)
