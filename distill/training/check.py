"""Refuse a training that this machine cannot run, or that has no end, before any model loads."""

import torch

from distill.errors import UserError
from distill.training.config import BudgetConfig, TrainerConfig


def check_training(trainer: TrainerConfig, budget: BudgetConfig | None) -> None:
    """Check what no dataclass can know alone. budget: None where nothing is trained.

    Raises:
        UserError: the first thing found.
    """
    check_machine(trainer)
    if budget is not None and budget.tokens is None and budget.minutes is None:
        raise UserError("training has no end: set budget.tokens or budget.minutes")


def check_machine(trainer: TrainerConfig) -> None:
    """Check the devices that are asked for against those that are here.

    Raises:
        UserError: GPUs are asked for and there are none, or fewer.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    wants_gpu = trainer.accelerator in ("gpu", "cuda")
    if wants_gpu and gpus == 0:
        raise UserError(
            f"trainer.accelerator is {trainer.accelerator} but torch sees no GPU here; use "
            "trainer=cpu, or check nvidia-smi, CUDA_VISIBLE_DEVICES and that torch is a CUDA build"
        )
    if trainer.strategy == "fsdp" and gpus == 0:
        raise UserError("trainer.strategy is fsdp but torch sees no GPU here; use trainer=cpu")
    if wants_gpu and trainer.devices != "auto" and int(trainer.devices) > gpus:
        raise UserError(f"trainer.devices is {trainer.devices} but torch sees {gpus} GPUs here")
