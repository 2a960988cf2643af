"""The serving chat template, applied exactly once, and what of the result is the answer.

The template writes every special token itself, so its output is tokenized *without* special
tokens: a tokenizer that adds a BOS of its own would otherwise write a second one. A row of which
the template leaves something out is not used: the target would be trained on what it never says.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from distill.data.sources.rows import PARTS, Message
from distill.errors import UserError

Tools = Sequence[Mapping[str, Any]]
CALLS = ("tool_calls", "function_call")
"""Parts that a template writes in every turn; a thought it writes in the last one at least."""


class UnusableChatError(Exception):
    """The template cannot render this conversation so that its answer can be told apart."""


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a UserError where the tokenizer has no template, or several and none is `default`."""
    template = tokenizer.chat_template
    if isinstance(template, str) or (isinstance(template, Mapping) and "default" in template):
        return
    raise UserError(
        "The target's tokenizer has no single chat template, nor one called `default`: use the "
        "instruction-tuned target, or rows with `format: completion` or `text` only."
    )


def with_system(messages: Sequence[Message], system_prompt: str | None) -> list[Message]:
    """The conversation with the serving system prompt, unless it brings its own."""
    if system_prompt is None or messages[0]["role"] == "system":
        return list(messages)
    return [{"role": "system", "content": system_prompt}, *messages]


def render(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    kwargs: Mapping[str, Any],
    add_generation_prompt: bool,
    tools: Tools = (),
) -> str:
    """The conversation as text, by the template that a server takes.

    Of several templates that is `default`, or `tool_use` where there are tools.

    Raises:
        UnusableChatError: the template refuses the conversation, or fails on it.
    """
    check_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            tools=[dict(tool) for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            **kwargs,
        )
    except Exception as error:  # the template is a program of others: it may raise anything
        raise UnusableChatError(f"the chat template refuses it: {error}") from error
    assert isinstance(text, str)
    return text


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of exactly this text, nothing added."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[return-value]


def special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of the tokenizer's special tokens."""
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}


def prompt_ids(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    kwargs: Mapping[str, Any],
    tools: Tools = (),
) -> list[int]:
    """The ids that a server gives the target when it is to answer `messages`.

    Raises:
        UnusableChatError: the template refuses the conversation, or leaves some of it out.
    """
    text = render(messages, tokenizer, kwargs, True, tools)
    _check_whole(text, messages, tokenizer, kwargs, True, tools)
    return plain_ids(tokenizer, text)


def answer_ids(
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    kwargs: Mapping[str, Any],
    *,
    tools: Tools = (),
    eos_token_ids: Sequence[int] = (),
) -> tuple[list[int], list[int]]:
    """(prompt ids, answer ids) of a conversation that ends with the assistant's turn.

    No generation markers are needed: the rendered conversation must begin with the rendered
    prompt, and the rest is the answer, as `ended` cuts it.

    Raises:
        UnusableChatError: the answer cannot be told apart, goes on behind a token that ends it, or
            the template leaves some of the conversation out.
    """
    check_end(messages[-1]["content"], tokenizer, eos_token_ids)
    prompt_text = render(messages[:-1], tokenizer, kwargs, True, tools)
    whole_text = render(messages, tokenizer, kwargs, False, tools)
    _check_whole(whole_text, messages, tokenizer, kwargs, False, tools)
    if not whole_text.startswith(prompt_text):
        raise UnusableChatError(
            "the rendered conversation does not begin with the rendered prompt (as where the "
            "template opens a block such as <think>): leave the answers out of the rows, so that "
            "the target writes them"
        )
    if _squeezed(messages[-1]["content"]) not in _squeezed(whole_text[len(prompt_text) :]):
        raise UnusableChatError("the chat template leaves out some of the answer's `content`")
    prompt = plain_ids(tokenizer, prompt_text)
    whole = plain_ids(tokenizer, whole_text)
    if whole[: len(prompt)] == prompt:
        answer = whole[len(prompt) :]
    else:  # a token straddles the join; a server never sees it whole
        answer = plain_ids(tokenizer, whole_text[len(prompt_text) :])
    return prompt, ended(answer, tokenizer, eos_token_ids)


def ended(
    answer: list[int], tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int] = ()
) -> list[int]:
    """The answer up to and with the id that ends it.

    That is the first of `eos_token_ids`, those that end the target's text: what the template
    writes after it (a newline, say) the target never has to produce. Without any it is the last
    special token, if only white space follows; and without such a one an end is appended.
    """
    first = next((place for place, i in enumerate(answer) if i in {*eos_token_ids}), None)
    if first is not None:
        return answer[: first + 1]
    special = special_ids(tokenizer)
    last = next((i for i in reversed(range(len(answer))) if answer[i] in special), None)
    if last is not None and not str(tokenizer.decode(answer[last + 1 :])).strip():
        return answer[: last + 1]
    own = tokenizer.eos_token_id
    if eos_token_ids and own not in eos_token_ids:
        own = eos_token_ids[0]
    return [*answer, own] if isinstance(own, int) else answer


def check_end(
    answer: str, tokenizer: PreTrainedTokenizerBase, eos_token_ids: Sequence[int]
) -> None:
    """Refuse an answer that goes on behind a token that ends the target's text.

    Raises:
        UnusableChatError: the target would never write the rest.
    """
    for token in tokenizer.convert_ids_to_tokens(list(eos_token_ids)):
        _, found, rest = answer.partition(str(token))
        if found and rest.replace(str(token), "").strip():
            raise UnusableChatError(f"the answer goes on behind {token!r}, which ends it")


def _squeezed(text: str) -> str:
    """The text without white space: a template may trim and break lines."""
    return "".join(text.split())


def _check_whole(
    text: str,
    messages: Sequence[Message],
    tokenizer: PreTrainedTokenizerBase,
    kwargs: Mapping[str, Any],
    add_generation_prompt: bool,
    tools: Tools,
) -> None:
    """Refuse a conversation of which `text` does not hold all: it is the same without a part."""
    parts = [*_without_parts(messages, tools), *_without_contents(text, messages, tools)]
    for name, fewer, fewer_tools in parts:
        try:
            less = render(fewer, tokenizer, kwargs, add_generation_prompt, fewer_tools)
        except UnusableChatError:
            continue  # the template cannot do without it, so it looks at it
        if less == text:
            raise UnusableChatError(f"the chat template leaves out `{name}`")


def _without_parts(
    messages: Sequence[Message], tools: Tools
) -> Iterator[tuple[str, list[Message], Tools]]:
    """The conversation without each part that has to be written: (its name, messages, tools)."""
    if tools:
        yield "tools", list(messages), ()
    for part in PARTS:
        holders = messages if part in CALLS else messages[-1:]
        if any(part in message for message in holders):
            kept = list(messages[: len(messages) - len(holders)])
            yield part, [*kept, *(_less(message, part) for message in holders)], tools


def _without_contents(
    text: str, messages: Sequence[Message], tools: Tools
) -> Iterator[tuple[str, list[Message], Tools]]:
    """The conversation without each content that does not stand in `text` as it is.

    Of an earlier turn, as in serving, a template may leave out some, such as a thought.
    """
    written = _squeezed(text)
    for place, message in enumerate(messages):
        if _squeezed(message["content"]) not in written:
            fewer = [*messages[:place], {**message, "content": ""}, *messages[place + 1 :]]
            yield f"content of the {message['role']}", fewer, tools


def _less(message: Message, part: str) -> Message:
    return {key: value for key, value in message.items() if key != part}
