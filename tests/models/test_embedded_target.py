"""The real embedded target: fetched by the setup, converted once into the cache."""

import os
import sysconfig
from pathlib import Path

import pytest
import torch

from distill.models.draft import initialise_draft
from distill.models.plan import plan_draft
from distill.models.source import check_model_folder, resolve_model
from distill.models.target import context_length, eos_token_ids, load_target
from distill.models.vocabulary import shared_vocabulary
from distill.schema import DraftConfig, ModelConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder() -> Path:
    cache = Path(os.environ.get("DISTILL_CACHE", "~/.cache/distill"))
    return resolve_model(ModelConfig(source="embedded", id="SmolLM2-135M-Instruct"), cache)


@pytest.fixture(scope="module")
def tokenizer(folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_folder_is_complete_and_says_what_it_is(folder):
    check_model_folder(folder, "target")
    assert eos_token_ids(folder) == (2,)
    assert context_length(folder) == 8192
    assert shared_vocabulary(folder, None).size == 49152


def test_source_code_survives_the_tokenizer(tokenizer):
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]:
        text = path.read_text(encoding="utf-8")
        assert tokenizer.decode(tokenizer(text).input_ids) == text, path.name


def test_digits_and_spaces_are_cut_as_the_model_learned_them(tokenizer):
    assert tokenizer.tokenize("x =  12\n    1") == ["x", "Ġ=", "ĠĠ", "1", "2", "ĊĠĠĠĠ", "1"]


def test_special_tokens_and_chat_template(tokenizer):
    assert tokenizer("<|im_start|>a<|im_end|>").input_ids[::2] == [1, 2]
    assert tokenizer("a").input_ids == tokenizer("a", add_special_tokens=False).input_ids
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_target_predicts_code_and_the_planned_draft_is_a_tenth(folder, tokenizer):
    text = Path(sysconfig.get_paths()["stdlib"], "bisect.py").read_text(encoding="utf-8")
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :256]
    with torch.no_grad():
        loss = load_target(folder, dtype=torch.float32, device="cpu")(ids, labels=ids).loss
    assert loss < 2.5  # a broken conversion is far above; a uniform guess is 10.8
    plan = plan_draft(folder, DraftConfig())
    assert 0.09 < plan.ratio <= 0.1
    with torch.no_grad():
        assert initialise_draft(plan, "svd", folder, 0)(ids).logits.isfinite().all()
