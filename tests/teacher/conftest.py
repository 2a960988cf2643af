"""A tiny target and a corpus whose rows differ in length and prompt."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from distill.data.corpus import SPLITS, save_corpus
from distill.data.encode import Example
from tests.tiny import tiny_llama

VOCABULARY = 40
LENGTHS = [9, 4, 12, 3, 7, 12, 5, 2, 11, 6]
"""The row of length 2 has a prompt of 2: nothing to learn."""


def make_target(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    return tiny_llama(vocab_size=VOCABULARY, initializer_range=0.3).to(dtype)


@pytest.fixture
def target() -> Callable[..., LlamaForCausalLM]:
    return make_target


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    splits = {name: [] for name in SPLITS}
    for split, count in (("train", len(LENGTHS)), ("validation", 3)):
        for row, length in enumerate(LENGTHS[:count]):
            ids = generator.integers(0, VOCABULARY, length).astype(np.int32)
            splits[split].append(Example(f"{split}{row}", "d", ids, row % 4 if length > 2 else 2))
    folder = tmp_path / "corpus"
    folder.mkdir()
    save_corpus(splits, folder)
    return folder
