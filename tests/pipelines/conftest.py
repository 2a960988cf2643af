"""A tiny target folder with a byte-level tokenizer, and the command line run on it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from distill.cli import main
from tests.tiny import tiny_llama

SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(folder: Path, swap: bool = False, reserved: int = 0) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swap:
        alphabet[40], alphabet[41] = alphabet[41], alphabet[40]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*SPECIAL, *(f"<|reserved_{n}|>" for n in range(reserved))])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)


def write_model(
    folder: Path,
    layers: int = 2,
    hidden: int = 64,
    swap: bool = False,
    spread: float = 0.02,
    noise: float = 0.0,
    reserved: int = 0,
) -> Path:
    """spread: of the weights; from 0.2 on a token's successor depends on more than itself.

    reserved: special tokens that no text has.
    """
    model = tiny_llama(
        vocab_size=256 + len(SPECIAL) + reserved,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        bos_token_id=256,
        eos_token_id=257,
        initializer_range=spread,
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight += noise * torch.randn_like(weight)
    model.save_pretrained(folder)
    write_tokenizer(folder, swap, reserved)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [257]}))
    return folder


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("target"))


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"r{i}", "prompt": f"count to {i}", "domain": "math"} for i in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch, target: Path, tmp_path: Path) -> Callable[..., None]:
    """Run `python -m distill` in this process on the tiny target; SystemExit is the caller's."""
    small = [
        "target=folder",
        f"target.id={target}",
        f"paths.output={tmp_path / 'outputs'}",
        f"paths.cache={tmp_path / 'cache'}",
        "target.dtype=float32",
        "trainer=cpu",
        "draft.hidden_size=32",
        "draft.num_hidden_layers=1",
        "data.train_rows=24",
        "data.validation_rows=4",
        "data.evaluation_rows=4",
        "data.max_length=96",
        "data.prompt_tokens=16",
        "generate.max_new_tokens=12",
        "trainer.tokens_per_batch=128",
        "trainer.tokens_per_step=128",
        "trainer.checkpoints=2",
        "budget.tokens=600",
        "evaluate.num_draft_tokens=[1,2]",
        "evaluate.num_prompts=3",
        "evaluate.max_new_tokens=8",
    ]

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["distill", *small, *arguments])
        main()

    return run
