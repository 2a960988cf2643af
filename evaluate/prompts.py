"""Prompts for an evaluation: held-out rows or those of a file, spread over domains, with all turns.

A later turn's prompt holds the target's own earlier answers, as in serving. They are decoded once,
plainly, and shared by all arms, so that every arm continues the same prompts.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.data import chat
from distill.data.chat import UnusableChatError
from distill.data.corpus import load_corpus, load_groups, load_turns
from distill.data.encode import Encoder
from distill.data.sources.jsonl import read_records
from distill.data.sources.records import Table, refuse_without_rows, row
from distill.data.sources.rows import Chat, Completion, Document, Message, Problem, Row
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.evaluate.config import EvaluateConfig
from distill.evaluate.independence import source_of
from distill.evaluate.load import Load, stream
from distill.evaluate.records import Prompt
from distill.schema import DataConfig, TargetConfig
from distill.speculative.decode import decode

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)
MAX_CHARACTERS = 500_000
NO_LIMIT = 2**31
"""Prompts are not cut: one that the context cannot hold is left out, and counted."""

Answer = Callable[[list[Prompt]], list[str]]
"""The target's answers to prompts, as text."""
Render = Callable[[Sequence[Message]], list[int]]
"""Messages as the token ids that a server gives the target; UnusableChatError where it cannot."""


@dataclass(frozen=True)
class Conversation:
    """tokens: the first prompt, made of `messages`. follow_ups: user turns still to come.

    Messages are needed only where there are any. group: of the row, where it is known.
    """

    id: str
    domain: str
    tokens: list[int]
    messages: Sequence[Message] = ()
    follow_ups: Sequence[str] = ()
    group: str = ""


@dataclass(frozen=True)
class Unrolled:
    """prompts: all turns. too_long: turns left out because the context would not hold them.

    unusable: reason → turns left out because the template refuses the conversation.
    """

    prompts: list[Prompt]
    too_long: int = 0
    unusable: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Unrolled":
        prompts = [Prompt(**one) for one in value["prompts"]]
        return cls(prompts, value["too_long"], Counter(value["unusable"]))

    def tally(self, conversations: Sequence[Conversation], too_long: int) -> dict[str, Any]:
        """How many conversations and turns are decoded, and how many were left out.

        conversations: the ones that were unrolled. too_long: those left out for their first prompt.
        """
        return {
            "conversations": len(conversations),
            "turns": len(self.prompts),
            "too_long": too_long + self.too_long,
            "unusable": self.unusable.total(),
            "domains": dict(sorted(Counter(one.domain for one in conversations).items())),
        }


def spread(conversations: Iterable[Conversation], most: int) -> list[Conversation]:
    """The first `most`, the same number of each domain as far as its conversations reach.

    Within a domain, conversations of different sources come first: windows of one file tell little
    more than one of them does.
    """
    domains: dict[str, list[Conversation]] = {}
    for conversation in conversations:
        domains.setdefault(conversation.domain, []).append(conversation)
    ranked = [
        (place, domain, conversation)
        for domain, found in domains.items()
        for place, conversation in enumerate(_sources_first(found))
    ]
    ranked.sort(key=lambda one: one[:2])
    return [conversation for _, _, conversation in ranked[:most]]


def _sources_first(conversations: Sequence[Conversation]) -> list[Conversation]:
    """One of each source, then the second ones of those that have two, and so on."""
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, Conversation]] = []
    for conversation in conversations:
        source = source_of(conversation.id, conversation.group)
        ranked.append((seen[source], conversation))
        seen[source] += 1
    return [conversation for _, conversation in sorted(ranked, key=lambda one: one[0])]


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
            self.conversation, messages, replace(old, tokens=render(messages), turn=old.turn + 1)
        )


def _first(conversation: Conversation) -> Prompt:
    return Prompt(
        conversation.id, conversation.domain, conversation.tokens, group=conversation.group
    )


@dataclass(frozen=True)
class PromptFile:
    """The rows of `evaluate.prompts`, read once, and what was wrong with others."""

    rows: list[Row]
    problems: list[Problem]

    @classmethod
    def read(cls, path: Path) -> "PromptFile":
        """UserError for a file that is not there or has no usable row."""
        if not path.is_file():
            raise UserError(f"{path} does not exist: give evaluate.prompts a JSONL file")
        table = Table(MAX_CHARACTERS)
        entries = table.read(str(path), read_records(path))
        refuse_without_rows(str(path), entries, table.problems)
        return cls([row(entry, "evaluation") for entry in entries], table.problems)

    def domains(self) -> set[str]:
        return {one.domain for one in self.rows}

    def count(self, domains: Collection[str] | None) -> int:
        """The number of rows of these domains; None stands for all domains."""
        return sum(domains is None or one.domain in domains for one in self.rows)

    def conversations(
        self, tokenizer: "PreTrainedTokenizerBase", data: DataConfig, target: TargetConfig
    ) -> Iterator[Conversation]:
        """Each row as a conversation, in an order fixed by hash; nothing is cut."""
        data = replace(data, max_length=NO_LIMIT)
        encoder = Encoder(tokenizer, data, target)
        for problem in self.problems:
            log.warning("evaluate.prompts: %s", problem)
        for one in sorted(self.rows, key=lambda one: (stable_hash(one.id), one.id)):
            content = one.content
            text = isinstance(content, Document)
            whole = replace(one, kept=Completion(content.text) if text else content)
            for example in encoder.examples(whole):
                length = data.prompt_tokens if text else example.prompt_length
                yield Conversation(
                    example.id,
                    example.domain,
                    example.input_ids[:length].tolist(),
                    *_going_on(one, target),
                    group=one.group,
                )
        for reason, number in encoder.dropped.items():
            log.warning("evaluate.prompts: %d left out: %s", number, reason)


def held_out_conversations(corpus: Path) -> Iterator[Conversation]:
    """The evaluation rows of a corpus as conversations, in its order."""
    turns, groups = load_turns(corpus), load_groups(corpus)
    for found in load_corpus(corpus)["evaluation"].to_list():
        prompt = list(found["input_ids"][: found["prompt_length"]])
        id = found["id"]
        yield Conversation(
            id, found["domain"], prompt, group=groups.get(id, ""), **turns.get(id, {})
        )


def choose_conversations(
    found: Iterable[Conversation], asked: EvaluateConfig, context: int
) -> tuple[list[Conversation], int]:
    """The conversations to decode, and how many did not fit into `context` positions.

    Raises:
        UserError: none is left, too few for a batch, or a domain that has a floor has none.
    """
    wanted = asked.domains
    of_domains = [one for one in found if wanted is None or one.domain in wanted]
    fitting = [one for one in of_domains if len(one.tokens) < context]
    too_long = len(of_domains) - len(fitting)
    if too_long:
        log.warning("evaluate: %d prompts are longer than %d tokens: left out", too_long, context)
    chosen = spread(fitting, asked.num_prompts)
    if not chosen:
        raise UserError(
            f"no prompts are left to decode ({too_long} too long, domains {wanted or 'all'}): "
            "widen evaluate.domains, or give more with evaluate.prompts or data.evaluation_rows"
        )
    check_batches(asked, len(chosen))
    check_floors(asked, {one.domain for one in chosen})
    return chosen, too_long


def check_batches(asked: EvaluateConfig, conversations: int) -> None:
    """UserError for a batch size that `conversations` cannot fill even once."""
    if (largest := max(asked.batch_sizes)) > conversations:
        raise UserError(
            f"evaluate.batch_sizes has {largest}, and {conversations} prompts are decoded: no "
            "batch would be that large; lower it, or raise evaluate.num_prompts and what they are "
            "taken from (data.evaluation_rows or evaluate.prompts)"
        )


def check_floors(asked: EvaluateConfig, decoded: Collection[str]) -> None:
    """UserError for a floor whose domain is not among those decoded."""
    if bare := sorted({*asked.floors} - {*decoded}):
        raise UserError(
            f"evaluate.floors names {bare[0]!r}, and none of its prompts is decoded: raise "
            "evaluate.num_prompts or drop the floor"
        )


def all_turns(
    target: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    conversations: Sequence[Conversation],
    load: Load,
    *,
    context: int,
    chat_template_kwargs: dict[str, Any],
) -> Unrolled:
    """Every turn as a prompt; later ones hold the target's own answers, decoded as at `load`."""

    def answer(prompts: list[Prompt]) -> list[str]:
        tokens: list[list[int]] = []
        for start in range(0, len(prompts), load.batch_size):
            batch = prompts[start : start + load.batch_size]
            tokens += decode(
                target,
                [prompt.tokens for prompt in batch],
                sampling=load.sampling,
                max_new_tokens=load.max_new_tokens,
                eos_token_ids=load.eos_token_ids,
                seed=load.seed,
                row_ids=[stream(prompt) for prompt in batch],
                vocabulary_size=load.vocabulary_size,
            ).tokens
            log.info("evaluate: answered %d of %d turns", len(tokens), len(prompts))
        return tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def render(messages: Any) -> list[int]:
        return chat.prompt_ids(messages, tokenizer, chat_template_kwargs)

    found = unroll(conversations, answer, render, context)
    if found.too_long:
        log.warning("evaluate: %d later turns would fill the context: left out", found.too_long)
    for reason, number in found.unusable.items():
        log.warning("evaluate: %d later turns left out: %s", number, reason)
    return found


def _going_on(one: Row, target: TargetConfig) -> tuple[list[Message], tuple[str, ...]]:
    content = one.content
    if not isinstance(content, Chat) or not content.follow_ups:
        return [], ()
    return chat.with_system(content.messages, target.system_prompt), content.follow_ups
