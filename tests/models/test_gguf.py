import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from distill.errors import UserError
from distill.models.gguf import lossless_dtype, mend_pre_tokenizer

FILE = Path("m.gguf")
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (1.0 + 2**-7, torch.bfloat16),
        (1.0 + 2**-10, torch.float16),
        (1.0 + 2**-20, torch.float32),
        (65520.0 * 4, torch.float32),
    ],
)
def test_narrowest_dtype_that_loses_nothing(tiny, value, wanted):
    model = tiny.model()
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0)
        model.model.norm.weight[0] = value
    assert lossless_dtype(model) == wanted


def test_digits_are_cut_before_spaces_are_grouped():
    """The two spaces before a digit stay one piece, which GPT-2's pattern splits."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

    mended = mend_pre_tokenizer(json.loads(made.to_str()), "smollm", FILE)
    splitter = Tokenizer.from_str(json.dumps(mended)).pre_tokenizer
    assert [piece for piece, _ in splitter.pre_tokenize_str("x  12")] == ["x", "ĠĠ", "1", "2"]
    assert [piece for piece, _ in made.pre_tokenizer.pre_tokenize_str("x  12")] == [
        "x",
        "Ġ",
        "Ġ12",
    ]


@pytest.mark.parametrize("name", [None, "gpt-2", "default"])
def test_gpt2_patterns_are_left_alone(name):
    tokenizer = {"pre_tokenizer": BYTE_LEVEL}
    assert mend_pre_tokenizer(tokenizer, name, FILE) == tokenizer


def test_a_pattern_that_transformers_set_is_left_alone():
    tokenizer = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": []}}
    assert mend_pre_tokenizer(tokenizer, "qwen2", FILE) == tokenizer


def test_unknown_patterns_name_the_remedy():
    with pytest.raises(UserError, match=r"'mystery'.*tokenizer.json and tokenizer_config.json"):
        mend_pre_tokenizer({"pre_tokenizer": BYTE_LEVEL}, "mystery", FILE)
