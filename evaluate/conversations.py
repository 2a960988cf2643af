"""Prompts for an evaluation: spread over domains, and their later turns with the target's answers.

A later turn's prompt holds the target's own earlier answers, as in serving. They are decoded once,
plainly, and shared by all arms, so that every arm continues the same prompts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from distill.data.chat import UnusableChatError
from distill.data.sources.rows import Message
from distill.evaluate.records import Prompt

Answer = Callable[[list[Prompt]], list[str]]
"""The target's answers to prompts, as text."""
Render = Callable[[Sequence[Message]], list[int]]
"""Messages as the token ids that a server gives the target; UnusableChatError where it cannot."""


@dataclass(frozen=True)
class Conversation:
    """tokens: the first prompt, made of `messages`. follow_ups: user turns still to come.

    Messages are needed only where there are any.
    """

    id: str
    domain: str
    tokens: list[int]
    messages: Sequence[Message] = ()
    follow_ups: Sequence[str] = ()


@dataclass(frozen=True)
class Unrolled:
    """prompts: all turns. too_long: turns left out because the context would not hold them.

    unusable: reason → turns left out because the template refuses the conversation.
    """

    prompts: list[Prompt]
    too_long: int = 0
    unusable: Counter[str] = field(default_factory=Counter)


def spread(conversations: Iterable[Conversation], most: int) -> list[Conversation]:
    """The first `most`, the same number of each domain as far as its conversations reach."""
    domains: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        domains.setdefault(conversation.domain, []).append(conversation)
    ranked = [
        (place, domain, conversation)
        for domain, found in domains.items()
        for place, conversation in enumerate(found)
    ]
    ranked.sort(key=lambda one: one[:2])
    return [conversation for _, _, conversation in ranked[:most]]


def unroll(
    conversations: Sequence[Conversation], answer: Answer, render: Render, context: int
) -> Unrolled:
    """Every turn as a prompt.

    A conversation ends early where its next prompt fills the context or cannot be rendered.
    """
    going = [_Open(c, list(c.messages), _first(c)) for c in conversations]
    prompts, too_long = [one.prompt for one in going], 0
    unusable: Counter[str] = Counter()
    while going := [one for one in going if one.waiting]:
        asked = []
        for one, text in zip(going, answer([one.prompt for one in going]), strict=True):
            try:
                following = one.after(text, render)
            except UnusableChatError as reason:
                unusable[str(reason)] += len(one.waiting)
                continue
            if len(following.prompt.tokens) < context:
                asked.append(following)
            else:
                too_long += len(one.waiting)
        prompts += [one.prompt for one in asked]
        going = asked
    return Unrolled(prompts, too_long, unusable)


@dataclass(frozen=True)
class _Open:
    """A conversation at one of its turns."""

    conversation: Conversation
    messages: list[Message] = field(repr=False)
    prompt: Prompt

    @property
    def waiting(self) -> Sequence[str]:
        return self.conversation.follow_ups[self.prompt.turn :]

    def after(self, text: str, render: Render) -> "_Open":
        messages = [
            *self.messages,
            {"role": "assistant", "content": text},
            {"role": "user", "content": self.waiting[0]},
        ]
        old = self.prompt
        return _Open(
            self.conversation, messages, Prompt(old.id, old.domain, render(messages), old.turn + 1)
        )


def _first(conversation: Conversation) -> Prompt:
    return Prompt(conversation.id, conversation.domain, conversation.tokens)
