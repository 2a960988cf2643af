"""A tiny target with a real tokenizer, template and two EOS ids, and a champion draft for it."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from distill.models.draft import save_draft
from tests.tiny import tiny_llama

SPECIAL = ("<|start|>", "<|end|>", "<|stop|>")
VOCABULARY = 256 + len(SPECIAL)
EOS = [257, 258]


def llama(layers: int, *, tied: bool, seed: int) -> LlamaForCausalLM:
    return tiny_llama(
        seed,
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=layers,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=256,
        eos_token_id=257,
        initializer_range=0.3,
    )


def save_tokenizer(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    fast.chat_template = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    llama(2, tied=True, seed=0).save_pretrained(folder)
    save_tokenizer(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def champion(request: pytest.FixtureRequest, target: Path, tmp_path: Path) -> Path:
    """Saved in float32, as training saves it."""
    folder = tmp_path / "champion"
    save_draft(llama(1, tied=request.param, seed=1), folder, target)
    return folder
