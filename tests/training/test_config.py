"""Impossible settings are refused where they are declared, or by what knows the machine."""

import pytest
import torch
from omegaconf import OmegaConf

from distill.errors import UserError
from distill.training.check import check_training
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (OptimizerConfig, {"lr": 0.0}, "lr is 0.0; it must be above 0"),
        (OptimizerConfig, {"muon_lr": float("nan")}, "muon_lr is nan"),
        (OptimizerConfig, {"weight_decay": -1.0}, "must not be negative"),
        (OptimizerConfig, {"betas": [0.9, 1.0]}, r"\[0.9, 1.0\]; give two numbers"),
        (OptimizerConfig, {"betas": [0.9]}, "give two numbers"),
        (ScheduleConfig, {"name": "linear"}, "cosine, wsd or constant"),
        (ScheduleConfig, {"warmup": -0.1}, "use a share, 0 to 1"),
        (ScheduleConfig, {"name": "wsd", "warmup": 0.8, "decay": 0.3}, "is above 1"),
        (TrainerConfig, {"strategy": "deepspeed"}, "auto, ddp, fsdp"),
        (TrainerConfig, {"precision": "16"}, "auto, 32-true, bf16-mixed"),
        (TrainerConfig, {"tokens_per_step": 0}, "at least 1"),
        (TrainerConfig, {"devices": "0,1"}, "auto or a number of devices per node"),
        (TrainerConfig, {"gradient_clip": -1.0}, "0 switches it off"),
        (TrainerConfig, {"validate_every": 0.0}, "use 0 < share <= 1"),
        (TrainerConfig, {"keep": 0}, "at least 1"),
        (TrainerConfig, {"monitor": "loss"}, "alpha, decoding_alpha"),
        (TrainerConfig, {"keep": 2, "monitor": "decoding_alpha"}, r"set trainer\.decode_every"),
        (TrainerConfig, {"decode_every": -0.1}, r"trainer\.decode_every"),
        (TrainerConfig, {"decode_every": 1.5}, r"trainer\.decode_every"),
        (TrainerConfig, {"decode_num_prompts": 0}, r"trainer\.decode_num_prompts"),
        (TrainerConfig, {"decode_num_draft_tokens": 0}, r"trainer\.decode_num_draft_tokens"),
        (TrainerConfig, {"decode_max_new_tokens": 3}, r"trainer\.decode_max_new_tokens"),
        (BudgetConfig, {"tokens": 0}, "tokens is 0; it must be above 0"),
        (BudgetConfig, {"minutes": -1.0}, "minutes is -1.0; it must be above 0"),
    ],
)
def test_values_out_of_range_are_refused(config: type, changes: dict, message: str) -> None:
    """The dataclass refuses them itself, and so does a configuration that is made into it."""
    with pytest.raises(UserError, match=message):
        config(**changes)
    composed = OmegaConf.merge(OmegaConf.structured(config), changes)
    with pytest.raises(UserError, match=message):
        OmegaConf.to_object(composed)


@pytest.mark.parametrize("config", [OptimizerConfig, ScheduleConfig, TrainerConfig, BudgetConfig])
def test_defaults_survive_the_configuration(config: type) -> None:
    assert OmegaConf.to_object(OmegaConf.structured(config)) == config()


def test_a_training_without_end_is_refused() -> None:
    trainer = TrainerConfig(accelerator="cpu")
    check_training(trainer, BudgetConfig(minutes=1.0))
    check_training(trainer, None)  # nothing is trained
    with pytest.raises(UserError, match=r"set budget\.tokens or budget\.minutes"):
        check_training(trainer, BudgetConfig())


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        (0, {"accelerator": "gpu"}, "no GPU here; use trainer=cpu"),
        (0, {"strategy": "fsdp"}, "fsdp but torch sees no GPU"),
        (2, {"accelerator": "gpu", "devices": "3"}, "devices is 3 but torch sees 2 GPUs here"),
    ],
)
def test_devices_that_are_not_here_are_refused(monkeypatch, gpus, changes, message) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError, match=message):
        check_training(TrainerConfig(**changes), None)
