"""A tiny target as a folder: 2 layers, a word-level vocabulary, a head padded past it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, LlamaConfig, PreTrainedModel, Qwen2Config

from distill.schema import ModelConfig

TEMPLATE = "{% for m in messages %}<user>{{ m['content'] }}{% endfor %}"
WORDS = 200
IDS = WORDS + 2  # <user> and <end>, both special
ROWS = 256


def config(family: str, **changes):
    shape = {"vocab_size": ROWS, "hidden_size": 64, "num_hidden_layers": 2, "eos_token_id": None}
    shape |= {"num_attention_heads": 4, "bos_token_id": None, "pad_token_id": None}
    match family:
        case "gpt2":
            return GPT2Config(n_positions=64, **shape | changes)
        case "qwen2":
            extra = {"num_key_value_heads": 2, "intermediate_size": 160}
            return Qwen2Config(max_position_embeddings=64, **shape | extra | changes)
        case _:
            extra = {"num_key_value_heads": 2, "intermediate_size": 160, "head_dim": 16}
            return LlamaConfig(max_position_embeddings=64, **shape | extra | changes)


def model(family: str = "llama", **changes) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config(family, **changes)).eval()


def tokenizer(words: list[str] | None = None, special: tuple[str, ...] = ("<user>", "<end>")):
    words = words or [f"w{index}" for index in range(WORDS)]
    made = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="w0"))
    made.add_special_tokens([AddedToken(string) for string in special])
    return made


def write_folder(folder: Path, made=None, ids=None, eos: object = (201, 5)) -> Path:
    made = made or model()
    made.save_pretrained(folder)
    (ids or tokenizer()).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    if eos is not None:
        generation = {"eos_token_id": list(eos) if isinstance(eos, tuple) else eos}
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.fixture
def target(tmp_path) -> Path:
    return write_folder(tmp_path / "target")


@pytest.fixture
def no_loading(monkeypatch) -> None:
    """Loading any model fails the test: bad input must be seen before."""

    def fail(*_args, **_kwargs):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fail)
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", fail)


def source(kind: str, id: object) -> ModelConfig:
    return ModelConfig(source=kind, id=str(id))


@pytest.fixture
def tiny() -> SimpleNamespace:
    """The functions above: importlib mode keeps test files from importing each other."""
    return SimpleNamespace(
        config=config, model=model, tokenizer=tokenizer, write_folder=write_folder, source=source
    )
