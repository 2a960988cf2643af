"""Optimisers of a draft, by the role a parameter plays."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.schema import OptimizerConfig

FUSED_DEVICES = {"cpu", "cuda"}


def build_optimizers(student: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """AdamW alone, or Muon for the hidden matrices and AdamW for the rest.

    Weight decay acts on hidden matrices only: on norms, biases, embeddings and the output head it
    would pull a scale or a rare token's row to zero.
    """
    matrices, others = split_parameters(student)
    plain = {"params": others, "weight_decay": 0.0}
    if config.muon:
        # Scaled so that an update has AdamW's root mean square (Liu et al. 2025, "Muon is scalable
        # for LLM training", section 2.2): one rate then serves matrices of every shape.
        muon = torch.optim.Muon(
            matrices,
            lr=config.muon_lr,
            weight_decay=config.weight_decay,
            adjust_lr_fn="match_rms_adamw",
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


def check_optimizer(config: OptimizerConfig) -> None:
    """Raise UserError for rates or decays that cannot train."""
    for name in ("lr", "muon_lr"):
        if not getattr(config, name) > 0:
            raise UserError(f"optimizer.{name} is {getattr(config, name)}; it must be above 0")
    if not 0 <= config.ema < 1:
        raise UserError(f"optimizer.ema is {config.ema}; use 0 <= decay < 1, such as 0.995")
    if config.weight_decay < 0:
        raise UserError(f"optimizer.weight_decay is {config.weight_decay}; it must not be negative")
    if len(config.betas) != 2 or not all(0 <= beta < 1 for beta in config.betas):
        raise UserError(f"optimizer.betas is {list(config.betas)}; give two numbers in [0, 1)")


def _adamw(groups: list[dict], config: OptimizerConfig) -> Optimizer:
    devices = {p.device.type for group in groups for p in group["params"]}
    first, second = config.betas
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=(first, second), fused=devices <= FUSED_DEVICES
    )


def _groups(optimizers: Iterable[Optimizer]) -> Iterable[dict]:
    return (group for optimizer in optimizers for group in optimizer.param_groups)
