"""A tiny tokenizer, one token per character, and the special tokens that a test asks for."""

import string
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<unk>", "<s>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    """(template, adds_bos): `adds_bos` has the tokenizer put `<s>` (id 1) before raw text.

    plain_end: `<|im_end|>` (id 3) is an added token that is not special, and `<s>` is the EOS.
    """

    def make(
        template: str | dict[str, str] | None = CHATML,
        adds_bos: bool = False,
        plain_end: bool = False,
    ) -> PreTrainedTokenizerFast:
        vocabulary = {token: i for i, token in enumerate([*SPECIAL, *string.printable])}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
        inner.add_special_tokens(SPECIAL[:3] if plain_end else SPECIAL)
        if plain_end:
            inner.add_tokens([AddedToken(SPECIAL[3], special=False)])
        if adds_bos:
            inner.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 1)]
            )
        return PreTrainedTokenizerFast(
            tokenizer_object=inner,
            unk_token="<unk>",
            bos_token="<s>",
            eos_token="<s>" if plain_end else "<|im_end|>",
            pad_token="<s>" if plain_end else "<|im_end|>",
            chat_template=template,
        )

    return make


@pytest.fixture
def chatml() -> str:
    return CHATML
