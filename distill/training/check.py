"""Refuse a training that cannot run before any model loads."""

import torch

from distill.errors import UserError
from distill.schema import TrainerConfig
from distill.training.callbacks.candidates import MONITORS

STRATEGIES = ("auto", "ddp", "fsdp")
PRECISIONS = ("auto", "32-true", "bf16-mixed")


def check_trainer(trainer: TrainerConfig) -> None:
    """Check the trainer's settings against this machine.

    Raises:
        UserError: a GPU was asked for and there is none, more devices than there are, or a value
            out of range.
    """
    _check_choice("strategy", trainer.strategy, STRATEGIES)
    _check_choice("precision", trainer.precision, PRECISIONS)
    for name in ("tokens_per_batch", "tokens_per_step", "checkpoints", "num_nodes"):
        if getattr(trainer, name) < 1:
            raise UserError(f"trainer.{name} is {getattr(trainer, name)}; it must be at least 1")
    if not 0 < trainer.validate_every <= 1:
        raise UserError(f"trainer.validate_every is {trainer.validate_every}; use 0 < share <= 1")
    _check_choice("monitor", trainer.monitor, MONITORS)
    if trainer.keep is not None and trainer.keep < 1:
        raise UserError(f"trainer.keep is {trainer.keep}; keep at least 1, or null for all")
    _check_decoding(trainer)
    if trainer.gradient_clip < 0:
        raise UserError(f"trainer.gradient_clip is {trainer.gradient_clip}; 0 switches it off")
    _check_devices(trainer)


def _check_decoding(trainer: TrainerConfig) -> None:
    if not 0 <= trainer.decode_every <= 1:
        raise UserError(
            f"trainer.decode_every is {trainer.decode_every}; use a share of the budget, "
            "0 < share <= 1, or 0 to decode nothing while training"
        )
    if trainer.keep and trainer.monitor != "alpha" and not trainer.decode_every:
        raise UserError(
            f"trainer.monitor is {trainer.monitor} and nothing is decoded while training: set "
            "trainer.decode_every, such as 0.1, or trainer.monitor=alpha"
        )
    for name in ("decode_prompts", "decode_num_draft_tokens"):
        if getattr(trainer, name) < 1:
            raise UserError(f"trainer.{name} is {getattr(trainer, name)}; it must be at least 1")
    if trainer.decode_max_new_tokens <= trainer.decode_num_draft_tokens:
        raise UserError(
            f"trainer.decode_max_new_tokens is {trainer.decode_max_new_tokens}; it must be above "
            f"trainer.decode_num_draft_tokens, {trainer.decode_num_draft_tokens}"
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UserError(f"trainer.{name} is {value}; use one of {', '.join(choices)}")


def _check_devices(trainer: TrainerConfig) -> None:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if trainer.accelerator in ("gpu", "cuda") and gpus == 0:
        raise UserError(
            f"trainer.accelerator is {trainer.accelerator} but torch sees no GPU here; use "
            "trainer=cpu, or check nvidia-smi, CUDA_VISIBLE_DEVICES and that torch is a CUDA build"
        )
    if trainer.strategy == "fsdp" and gpus == 0:
        raise UserError("trainer.strategy is fsdp but torch sees no GPU here; use trainer=cpu")
    asked = str(trainer.devices)
    if asked != "auto" and not (asked.isdigit() and int(asked) > 0):
        raise UserError(f"trainer.devices is {asked}; use auto or a number of devices per node")
    if trainer.accelerator in ("gpu", "cuda") and asked != "auto" and int(asked) > gpus:
        raise UserError(f"trainer.devices is {asked} but torch sees {gpus} GPUs here")
