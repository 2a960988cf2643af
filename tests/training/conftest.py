"""A tiny pair of models, a data module of known rows, and one call that trains on them."""

import itertools
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from distill.teacher.live import LiveTeacher
from distill.training import run
from distill.training.callbacks.decoding import Decoding
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from distill.training.objective import Objective
from tests.tiny import tiny_llama

VOCABULARY = 96


def llama(width: int, seed: int, **changes: Any) -> LlamaForCausalLM:
    """A tiny Llama in training mode, whose weights are large enough for it to be sure of much."""
    shape = {"vocab_size": VOCABULARY, "hidden_size": width, "intermediate_size": 2 * width}
    return tiny_llama(seed, **shape | {"initializer_range": 0.3} | changes).train()


def micro_batch(seed: int, supervised: list[list[bool]]) -> dict[str, Tensor]:
    """Random ids with the given supervised marks [B, S]."""
    marks = torch.tensor(supervised)
    generator = torch.Generator().manual_seed(seed)
    return {
        "input_ids": torch.randint(0, VOCABULARY, marks.shape, generator=generator),
        "attention_mask": torch.ones_like(marks, dtype=torch.long),
        "supervised": marks,
        "row_index": torch.full((marks.shape[0],), seed),
    }


def marks(supervised: int, length: int = 8) -> list[bool]:
    """A row whose last `supervised` tokens are supervised."""
    return [False] * (length - supervised) + [True] * supervised


class Windows(lightning.LightningDataModule):
    """Endless windows of two micro-batches, made from their position alone."""

    def __init__(self) -> None:
        super().__init__()
        self.position = 0
        self.seen: list[int] = []

    def train_dataloader(self) -> Any:
        return self._windows()

    def _windows(self) -> Any:
        for position in itertools.count(self.position):
            yield [
                micro_batch(2 * position, [marks(1 + position % 3), marks(5)]),
                micro_batch(2 * position + 1, [marks(2)]),
            ]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.seen.append(self.position)
        self.position += 1
        return batch

    def val_dataloader(self) -> Any:
        return [micro_batch(1001, [marks(7), marks(3)]), micro_batch(1002, [marks(4)])]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.position = state_dict["position"]


def save_weights(draft: LlamaForCausalLM, folder: Path, target_folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(draft.state_dict(), folder / "weights.pt")


def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tokens: int = 70, **changes: Any
) -> tuple[dict[str, Any], LlamaForCausalLM, Windows]:
    """Train the tiny pair until `tokens`; changes override the arguments of `train_draft`."""
    monkeypatch.setattr(run, "save_draft", save_weights)
    arguments = {
        "draft": llama(16, seed=1),
        "teacher": LiveTeacher(llama(32, seed=0)),
        "datamodule": Windows(),
        "objective": Objective(),
        "optimizer": OptimizerConfig(lr=1e-2),
        "schedule": ScheduleConfig(),
        "trainer": TrainerConfig(accelerator="cpu", precision="32-true", checkpoints=2),
        "budget": BudgetConfig(tokens=tokens),
        "folder": folder,
        "vocabulary_size": VOCABULARY,
        "target_folder": folder,
    }
    arguments |= changes
    result = run.train_draft(**arguments)
    return result, arguments["draft"], arguments["datamodule"]


def decoding(target: LlamaForCausalLM, **changes: Any) -> Decoding:
    """Two short prompts, decoded at every fourth of the budget."""
    arguments = {
        "every": 0.25,
        "num_draft_tokens": 2,
        "max_new_tokens": 6,
        "eos_token_ids": (),
        "vocabulary_size": VOCABULARY,
    }
    return Decoding(target, [[1, 2, 3], [4, 5]], **arguments | changes)


@pytest.fixture
def tiny() -> Any:
    """The helpers above, for test modules that cannot import a conftest."""
    import sys

    return sys.modules[__name__]
