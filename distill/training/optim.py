"""Optimisers of a draft, by the role a parameter plays, and the gradients that they are given."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.training.config import OptimizerConfig
from distill.training.muon import Muon

FUSED_DEVICES = {"cpu", "cuda"}


def build_optimizers(student: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """AdamW alone, or Muon for the hidden matrices and AdamW for the rest.

    Weight decay acts on hidden matrices only: on norms, biases, embeddings and the output head it
    would pull a scale or a rare token's row to zero.
    """
    matrices, others = split_parameters(student)
    plain = {"params": others, "weight_decay": 0.0}
    if config.muon:
        muon = Muon(
            matrices, lr=_given(config.muon_lr, "muon_lr"), weight_decay=config.weight_decay
        )
        optimizers = [muon, _adamw([plain], config)]
    else:
        decayed = {"params": matrices, "weight_decay": config.weight_decay}
        optimizers = [_adamw([decayed, plain], config)]
    for group in _groups(optimizers):
        group["full_lr"] = group["lr"]
    return optimizers


def scale_learning_rates(optimizers: Iterable[Optimizer], factor: float) -> None:
    """Set every group's rate to its own full rate times `factor`."""
    for group in _groups(optimizers):
        group["lr"] = group["full_lr"] * factor


def split_parameters(student: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(hidden matrices, all others), each trainable parameter once."""
    tables = [m for m in student.modules() if isinstance(m, nn.Embedding)]
    heads = [m.get_output_embeddings() for m in student.modules() if isinstance(m, PreTrainedModel)]
    table_ids = {id(p) for m in (*tables, *heads) if m is not None for p in m.parameters()}
    trainable = [p for p in student.parameters() if p.requires_grad]
    matrices = [p for p in trainable if p.ndim == 2 and id(p) not in table_ids]
    matrix_ids = {id(p) for p in matrices}
    return matrices, [p for p in trainable if id(p) not in matrix_ids]


def scale_and_clip(parameters: Iterable[nn.Parameter], scale: float, max_norm: float) -> float:
    """Multiply gradients by `scale`, then shrink them to a norm of `max_norm` (0: no limit).

    Returns:
        The norm of the scaled gradients before shrinking.

    Raises:
        UserError: the norm is not finite; a step would destroy the weights.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    total = torch.nn.utils.get_total_norm(gradients)
    # A norm over sharded gradients is itself spread over the ranks.
    norm = (total.full_tensor() if isinstance(total, DTensor) else total).item() * scale
    if not math.isfinite(norm):
        raise UserError(
            f"the gradient norm is {norm}: lower optimizer.lr, or set trainer.precision=32-true"
        )
    shrink = min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
    torch._foreach_mul_(gradients, scale * shrink)  # pyright: ignore[reportPrivateImportUsage]
    return norm


def _adamw(groups: list[dict], config: OptimizerConfig) -> Optimizer:
    devices = {p.device.type for group in groups for p in group["params"]}
    first, second = config.betas
    return torch.optim.AdamW(
        groups, lr=_given(config.lr, "lr"), betas=(first, second), fused=devices <= FUSED_DEVICES
    )


def _given(rate: float | None, name: str) -> float:
    if rate is None:
        raise ValueError(f"optimizer.{name} is open: OptimizerConfig.for_start gives it a number")
    return rate


def _groups(optimizers: Iterable[Optimizer]) -> Iterable[dict]:
    return (group for optimizer in optimizers for group in optimizer.param_groups)
