"""What a row says and a template does not write, or ends early: dropped and counted, never lost."""

import pytest

from distill.data.encode import Encoder
from distill.data.sources import Chat, Completion, Row
from distill.errors import UserError
from distill.schema import DataConfig, TargetConfig

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yo"}
SYSTEM = {"role": "system", "content": "be brief"}
TOOL = {"role": "tool", "content": "42"}
END = 3


def dropped(tokenizer, content, **target):
    data = DataConfig(source={}, max_length=200, prompt_tokens=16)
    subject = Encoder(tokenizer, data, TargetConfig(source="folder", id="x", **target), [END])
    found = list(subject.examples(Row("r", "chat", "g", "evaluation", content)))
    assert len(found) + subject.dropped.total() == 1
    return next(iter(subject.dropped), None)


def without(chatml: str, role: str) -> str:
    return chatml.replace("for m in messages", f"for m in messages if m['role'] != '{role}'", 1)


@pytest.mark.parametrize("odd", [SYSTEM, TOOL, USER], ids=lambda message: message["role"])
@pytest.mark.parametrize("answered", [True, False])
def test_a_template_that_leaves_out_a_message_drops_the_row(make_tokenizer, chatml, odd, answered):
    role = odd["role"]
    messages = (odd, USER, *([ANSWER] if answered else []))
    assert dropped(make_tokenizer(), Chat(messages)) is None
    said = dropped(make_tokenizer(without(chatml, role)), Chat(messages))
    assert said == f"the chat template leaves out `content of the {role}`"


def test_a_template_that_leaves_out_the_servings_own_system_prompt_drops_the_rows(
    make_tokenizer, chatml
):
    tokenizer = make_tokenizer(without(chatml, "system"))
    said = dropped(tokenizer, Chat((USER, ANSWER)), system_prompt="be brief")
    assert said == "the chat template leaves out `content of the system`"


def test_a_thought_inside_the_answer_that_the_template_cuts_off_drops_the_row(
    make_tokenizer, chatml
):
    content = "{{ m['content'] }}"
    cutting = chatml.replace(content, "{{ m['content'].split('</think>')[-1] }}")
    thought = {**ANSWER, "content": "<think>why</think>yo"}
    assert dropped(make_tokenizer(), Chat((USER, thought))) is None
    assert "answer's `content`" in (dropped(make_tokenizer(cutting), Chat((USER, thought))) or "")
    # Of an earlier turn a server leaves it out too.
    earlier = Chat((USER, thought, USER, ANSWER))
    assert dropped(make_tokenizer(cutting), earlier) is None


def test_white_space_is_the_templates_own(make_tokenizer, chatml):
    trimming = chatml.replace("{{ m['content'] }}", "{{ m['content'] | trim }}")
    wide = {**ANSWER, "content": "  yo\n  man \n"}
    assert dropped(make_tokenizer(trimming), Chat((USER, wide))) is None


@pytest.mark.parametrize(
    "broken", ["{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"]
)
def test_a_template_that_fails_on_a_row_drops_it(make_tokenizer, chatml, broken):
    said = dropped(make_tokenizer(chatml + broken), Chat((USER, ANSWER)))
    assert str(said).startswith("the chat template refuses it: ")


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    ("answer", "usable"),
    [
        ("a<|im_end|>b", False),
        ("a<|im_end|>\n", True),
        ("a<|im_end|><|im_end|>", True),
        ("a", True),
    ],
)
def test_an_answer_that_goes_on_behind_its_end_is_dropped(make_tokenizer, kind, answer, usable):
    chat = Chat((USER, {**ANSWER, "content": answer}))
    content = chat if kind == "chat" else Completion("hi", answer)
    said = dropped(make_tokenizer(), content)
    assert said == (None if usable else "the answer goes on behind '<|im_end|>', which ends it")


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "add_generation_prompt"])
def test_mode_flags_are_not_what_the_code_itself_gives(name):
    with pytest.raises(UserError, match=rf"chat_template_kwargs\.{name}"):
        TargetConfig(source="folder", id="x", chat_template_kwargs={name: True})
