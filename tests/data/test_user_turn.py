"""Where a user's words begin and end, in templates of several kinds."""

import pytest
from tokenizers import decoders

from distill.data.user_turn import user_turn
from distill.errors import UserError
from distill.schema import TargetConfig

INST = "<s>{% for m in messages %}[INST] {{ m.content | trim }} [/INST]{% endfor %}"


@pytest.fixture
def turn(make_tokenizer):
    def make(template, eos=(3,), **target):
        tokenizer = make_tokenizer(template)
        tokenizer.backend_tokenizer.decoder = decoders.Fuse()
        return user_turn(tokenizer, TargetConfig(**target), eos)

    return make


def ids(turn, text: str) -> list[int]:
    return turn.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_special_tokens_mark_both_ends(turn, chatml) -> None:
    found = turn(chatml, eos=(0,))
    assert list(found.opening) == ids(found, "<|im_start|>user\n")
    assert (found.ends, found.closing) == ({0, 3}, "")
    assert found.words([*ids(found, " Why?\n"), 3]) == "Why?"
    assert found.words([*ids(found, "Why?"), 0]) == "Why?"


def test_a_turn_that_does_not_end_or_begins_another_says_nothing(turn, chatml) -> None:
    found = turn(chatml)
    assert found.words(ids(found, "Why?")) is None
    assert found.words([]) is None
    assert found.words([*ids(found, "Why?<|im_start|>user\nHow?"), 3]) is None


def test_the_serving_system_prompt_comes_first(turn, chatml) -> None:
    found = turn(chatml, system_prompt="be kind")
    expected = "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\n"
    assert list(found.opening) == ids(found, expected)


def test_text_may_end_the_words_and_no_space_is_left_before_them(turn) -> None:
    found = turn(INST)
    assert list(found.opening) == ids(found, "<s>[INST]")
    assert (found.ends, found.closing) == ({3}, "[/INST]")
    assert found.words(ids(found, " Why? [/INST] Because.")) == "Why?"
    assert found.words([*ids(found, " Why?"), 3]) == "Why?"
    assert found.words(ids(found, " Why?")) is None


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% endif %}{% endfor %}x",
        "{{ raise_exception('only tools may speak') }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "Say: {{ messages[0].content }}, {{ messages[0].content }}",
    ],
)
def test_template_without_a_place_for_a_user(turn, template) -> None:
    with pytest.raises(UserError, match="data=jsonl"):
        turn(template)


def test_no_template(turn) -> None:
    with pytest.raises(UserError, match="no single chat template"):
        turn(None)
