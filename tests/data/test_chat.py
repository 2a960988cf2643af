import pytest

from distill.data.chat import UnusableChatError, answer_ids, prompt_ids
from distill.data.encode import Encoder, added_prefix
from distill.data.sources import Chat, Completion, Row
from distill.errors import UserError
from distill.schema import DataConfig, TargetConfig

USER = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yo"}
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""A template without an end of turn."""


def encoder(tokenizer, max_length=200, **target):
    data = DataConfig(source={}, max_length=max_length, prompt_tokens=16)
    return Encoder(tokenizer, data, TargetConfig(source="folder", id="x", **target))


def row(content, split="train"):
    return Row("r", "chat", "g", split, content)


def text(tokenizer, ids):
    return "".join(tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("writes_bos", [True, False])
def test_bos_is_written_by_the_template_alone(make_tokenizer, chatml, writes_bos):
    """TPL-BOS2: never the template's and the tokenizer's; none where serving would have none."""
    template = "{{ bos_token }}" + chatml if writes_bos else chatml
    tokenizer = make_tokenizer(template, adds_bos=True)
    training = prompt_ids([USER], tokenizer, {})
    with_answer, _ = answer_ids([USER, ANSWER], tokenizer, {})
    [corpus] = encoder(tokenizer).examples(row(Chat((USER,)), "evaluation"))
    assert training.count(1) == int(writes_bos)
    assert training == with_answer == corpus.input_ids.tolist()
    assert training == tokenizer.apply_chat_template([USER], add_generation_prompt=True).input_ids


def test_raw_prompt_is_what_a_server_makes_of_it(make_tokenizer):
    tokenizer = make_tokenizer(adds_bos=True)
    [example] = encoder(tokenizer).examples(row(Completion("def f():")))
    assert example.input_ids.tolist() == tokenizer("def f():").input_ids
    assert example.prompt_length == len(example.input_ids)
    assert added_prefix(make_tokenizer()) == []


def test_answer_is_found_without_generation_markers(make_tokenizer):
    """TPL-MASK0: the answer and its end-of-turn token, not the newline that follows it."""
    tokenizer = make_tokenizer()
    prompt, answer = answer_ids([USER, ANSWER], tokenizer, {})
    assert text(tokenizer, prompt) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert text(tokenizer, answer) == "yo<|im_end|>"


def test_rows_cut_before_their_answer_are_dropped_and_counted(make_tokenizer):
    """TPL-MASK0: four rows, one of which has no room for its answer."""
    subject = encoder(make_tokenizer(), max_length=60)
    rows = [Chat(({"role": "user", "content": "a" * length}, ANSWER)) for length in (1, 5, 12, 55)]
    found = [example for content in rows for example in subject.examples(row(content))]
    supervised = [len(e.input_ids) - e.prompt_length for e in found]
    assert supervised == [3, 3, 3]  # y, o, end of turn
    assert subject.dropped.total() == 1


def test_answer_cut_at_max_length_keeps_its_beginning(make_tokenizer):
    subject = encoder(make_tokenizer(), max_length=40)
    long = {"role": "assistant", "content": "z" * 50}
    [example] = subject.examples(row(Chat((USER, long))))
    assert len(example.input_ids) == 40
    assert text(subject.tokenizer, example.input_ids[example.prompt_length :]).strip("z") == ""


def test_every_assistant_turn_is_learnt_once_and_evaluated_at_the_last(make_tokenizer):
    messages = (USER, ANSWER, {"role": "user", "content": "and"}, {**ANSWER, "content": "so"})
    subject = encoder(make_tokenizer())
    answers = [
        (e.id, text(subject.tokenizer, e.input_ids[e.prompt_length :]))
        for e in subject.examples(row(Chat(messages)))
    ]
    assert answers == [("r#2", "yo<|im_end|>"), ("r", "so<|im_end|>")]
    assert [e.id for e in subject.examples(row(Chat(messages), "evaluation"))] == ["r"]


def test_answer_without_an_end_token_in_the_template_gets_the_eos(make_tokenizer):
    tokenizer = make_tokenizer(PLAIN)
    _, answer = answer_ids([USER, ANSWER], tokenizer, {})
    assert text(tokenizer, answer) == "yo\n<|im_end|>"


def test_template_that_rewrites_its_prompt_is_refused_for_supervision(make_tokenizer):
    template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UnusableChatError, match="begin"):
        answer_ids([USER, ANSWER], make_tokenizer(template), {})


def test_template_that_refuses_a_row_drops_it(make_tokenizer):
    subject = encoder(make_tokenizer("{{ raise_exception('no system role') }}"))
    assert list(subject.examples(row(Chat((USER,))))) == []
    assert "no system role" in next(iter(subject.dropped))


def test_no_template_names_the_remedy(make_tokenizer):
    with pytest.raises(UserError, match="format: completion"):
        prompt_ids([USER], make_tokenizer(None), {})


def test_system_prompt_and_mode_flags_reach_the_template(make_tokenizer, chatml):
    tokenizer = make_tokenizer(chatml + "{% if quiet %}!{% endif %}")
    subject = encoder(tokenizer, system_prompt="sys", chat_template_kwargs={"quiet": True})
    [example] = subject.examples(row(Chat((USER,))))
    shown = text(tokenizer, example.input_ids)
    assert shown.startswith("<|im_start|>system\nsys<|im_end|>")
    assert shown.endswith("!")


def test_an_answer_ends_with_the_targets_own_end_though_it_is_no_special_token(make_tokenizer):
    """EOT-PLAIN: the tokenizer's EOS is another, and a newline follows the turn."""
    tokenizer = make_tokenizer(plain_end=True)
    _, answer = answer_ids([USER, ANSWER], tokenizer, {}, eos_token_ids=[3, 1])
    assert text(tokenizer, answer) == "yo<|im_end|>"
    data = DataConfig(source={}, max_length=200, prompt_tokens=16)
    subject = Encoder(tokenizer, data, TargetConfig(source="folder", id="x"), [3, 1])
    [example] = subject.examples(row(Chat((USER, ANSWER))))
    assert example.input_ids[-1] == 3
    [raw] = subject.examples(row(Completion("def f():", "pass")))
    assert raw.input_ids[-1] == 1  # the tokenizer's, which is one of the target's


def test_an_answer_without_an_end_gets_the_targets_own(make_tokenizer):
    _, answer = answer_ids([USER, ANSWER], make_tokenizer(PLAIN), {}, eos_token_ids=[2])
    assert answer[-1] == 2


def test_of_several_templates_the_default_is_used(make_tokenizer, chatml):
    """TPL-NAMED."""
    one, several = (
        make_tokenizer(template)
        for template in (chatml, {"tool_use": "{{ tools }}", "default": chatml})
    )
    assert prompt_ids([USER], several, {}) == prompt_ids([USER], one, {})
    with pytest.raises(UserError, match="nor one called `default`"):
        prompt_ids([USER], make_tokenizer({"tool_use": chatml}), {})


def test_a_template_that_opens_a_block_says_to_drop_the_answers(make_tokenizer, chatml):
    """TPL-PREFILL."""
    opening = "assistant\n{% endif %}"
    template = chatml.replace(opening, "assistant\n<think>\n{% endif %}")
    assert template != chatml
    with pytest.raises(UnusableChatError, match="leave the answers out"):
        answer_ids([USER, ANSWER], make_tokenizer(template), {})


CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALLING = {"role": "assistant", "content": "let me look 7", "tool_calls": [CALL]}
THINKING = {**ANSWER, "reasoning_content": "why not"}


@pytest.fixture
def whole(chatml):
    """A template that writes tools, calls, and the thoughts of the last turn."""
    body = "{{ m['content'] }}"
    parts = (
        "{% if m.reasoning_content and loop.last %}({{ m.reasoning_content }}){% endif %}"
        "{% for c in m.tool_calls or [] %}"
        "[{{ c.function.name }}{{ c.function.arguments | tojson }}]"
        "{% endfor %}"
    )
    template = "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}" + chatml
    assert body in template
    return template.replace(body, body + parts)


@pytest.mark.parametrize(
    ("messages", "tools", "part", "shown"),
    [
        ((USER, CALLING), (TOOL,), "tools", "let me look 7[f{}]<|im_end|>"),
        ((USER, CALLING), (), "tool_calls", "let me look 7[f{}]<|im_end|>"),
        ((USER, THINKING), (), "reasoning_content", "yo(why not)<|im_end|>"),
    ],
)
def test_parts_of_a_message_are_written_by_the_template_or_its_row_is_dropped(
    make_tokenizer, chatml, whole, messages, tools, part, shown
):
    """ROW-TOOLS and ROW-REASONING."""
    able, unable = (encoder(make_tokenizer(template)) for template in (whole, chatml))
    content = row(Chat(messages, tools=tools))
    [example] = able.examples(content)
    answer = text(able.tokenizer, example.input_ids[example.prompt_length :])
    assert answer == shown
    assert text(able.tokenizer, example.input_ids).startswith("f;") == bool(tools)
    assert list(unable.examples(content)) == []
    assert dict(unable.dropped) == {f"the chat template leaves out `{part}`": 1}


def test_thoughts_of_earlier_turns_may_be_left_out_as_in_serving(make_tokenizer, whole):
    subject = encoder(make_tokenizer(whole))
    again = {"role": "user", "content": "and"}
    found = list(subject.examples(row(Chat((USER, THINKING, again, ANSWER)))))
    assert [e.id for e in found] == ["r#2", "r"]
    assert "why" in text(subject.tokenizer, found[0].input_ids)
    assert "why" not in text(subject.tokenizer, found[1].input_ids)


def test_a_prompt_whose_tools_the_template_leaves_out_is_dropped(make_tokenizer):
    subject = encoder(make_tokenizer())
    assert list(subject.examples(row(Chat((USER,), tools=(TOOL,))))) == []
    assert subject.dropped.total() == 1
