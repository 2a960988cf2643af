"""The serving chat template, applied exactly once, and what of the result is the answer.

The template writes every special token itself, so its output is tokenized *without* special
tokens: a tokenizer that adds a BOS of its own would otherwise write a second one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from distill.data.sources.rows import Message
from distill.errors import UserError


class UnusableChatError(Exception):
    """The template cannot render this conversation so that its answer can be told apart."""


def template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    if not isinstance(template, str):
        raise UserError(
            "The target's tokenizer has no single chat template: use the instruction-tuned "
            "target, or rows with `format: completion` or `text` only."
        )
    return template


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
) -> str:
    template_of(tokenizer)
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
        )
    except TemplateError as error:
        raise UnusableChatError(f"the chat template refuses it: {error}") from error
    assert isinstance(text, str)
    return text


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of exactly this text, nothing added."""
    return tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # type: ignore[return-value]


def prompt_ids(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any]
) -> list[int]:
    """The ids that a server gives the target when it is to answer `messages`."""
    return plain_ids(tokenizer, render(messages, tokenizer, kwargs, add_generation_prompt=True))


def answer_ids(
    messages: Sequence[Message], tokenizer: PreTrainedTokenizerBase, kwargs: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """(prompt ids, answer ids) of a conversation that ends with the assistant's turn.

    No generation markers are needed: the rendered conversation must begin with the rendered
    prompt, and the rest is the answer. It ends with its end-of-turn token; what the template
    writes after that (a newline, say) the target never has to produce.
    """
    prompt_text = render(messages[:-1], tokenizer, kwargs, add_generation_prompt=True)
    whole_text = render(messages, tokenizer, kwargs, add_generation_prompt=False)
    if not whole_text.startswith(prompt_text):
        raise UnusableChatError("the rendered conversation does not begin with the rendered prompt")
    prompt = plain_ids(tokenizer, prompt_text)
    whole = plain_ids(tokenizer, whole_text)
    if whole[: len(prompt)] == prompt:
        answer = whole[len(prompt) :]
    else:  # a token straddles the join; a server never sees it whole
        answer = plain_ids(tokenizer, whole_text[len(prompt_text) :])
    return prompt, ended(answer, tokenizer)


def ended(answer: list[int], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The answer up to and with its end-of-turn token; the tokenizer's EOS where it has none."""
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    last = next((i for i in reversed(range(len(answer))) if answer[i] in special), None)
    if last is not None and not str(tokenizer.decode(answer[last + 1 :])).strip():
        return answer[: last + 1]
    eos = tokenizer.eos_token_id
    return [*answer, eos] if isinstance(eos, int) else answer
