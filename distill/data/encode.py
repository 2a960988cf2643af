"""From a row to corpus rows (examples): token ids and where the supervised part begins."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from distill.data import chat
from distill.data.config import DataConfig
from distill.data.sources.rows import Chat, Completion, Document, Row
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.models.config import TargetConfig

MIN_WINDOW = 16
"""Tokens: what is left of a document below this is not worth a row."""
WINDOWS_HELD_OUT = 4
"""At most so many held-out windows of one document: prompts should differ."""
CHARACTERS_PER_TOKEN = 16
"""Generous: indented code reaches about 8. Text beyond it is not tokenized for one window."""
DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def|class)[ \t]", re.MULTILINE)
LINE = re.compile(r"^(?=.*\S)", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A corpus row: positions from max(prompt_length, 1) on are supervised."""

    id: str
    domain: str
    input_ids: np.ndarray
    prompt_length: int


def added_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """What the tokenizer puts before raw text when serving: usually nothing or a BOS."""
    plain = chat.plain_ids(tokenizer, "a")
    whole: list[int] = tokenizer("a")["input_ids"]  # type: ignore[assignment]
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start]
    return []


@dataclass
class Encoder:
    """Rows to examples.

    eos_token_ids: what ends the target's text, and so an answer; none: the tokenizer's own.
    dropped: reason → number of rows that could not be used.
    """

    tokenizer: PreTrainedTokenizerBase
    data: DataConfig
    target: TargetConfig
    eos_token_ids: Sequence[int] = ()
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.prefix = added_prefix(self.tokenizer)
        if not MIN_WINDOW <= self.data.prompt_tokens < self.data.max_length:
            raise UserError(
                f"data.prompt_tokens={self.data.prompt_tokens} must be at least {MIN_WINDOW} and "
                f"below data.max_length={self.data.max_length}."
            )

    def examples(self, row: Row) -> Iterator[Example]:
        """The examples of a row, lazily: held-out documents are tokenized one window at a time."""
        content = row.content
        try:
            if isinstance(content, Document):
                whole = row.split == "train"
                yield from self.windows(row, content) if whole else self.held_out(row, content)
            elif isinstance(content, Completion):
                yield from self._fit(row.id, row.domain, *self._completion(content))
            else:
                yield from self._chat(row, content)
        except chat.UnusableChatError as reason:
            self.dropped[str(reason)] += 1

    def windows(self, row: Row, document: Document) -> Iterator[Example]:
        """Windows that follow each other over the document; every one begins as a prompt would."""
        ids = chat.plain_ids(self.tokenizer, document.text)
        step = self.data.max_length - len(self.prefix)
        for start in range(0, len(ids), step):
            window = ids[start : start + step]
            if len(window) >= MIN_WINDOW or start == 0:
                name = f"{row.id}@{start}"
                share = self.data.continued
                yield self._learnt(name, row.domain, self.prefix + window, share)

    def held_out(self, row: Row, document: Document) -> Iterator[Example]:
        """Windows from a few places, definitions if there are any, in an order set by hash.

        For evaluation the first `prompt_tokens` tokens are the prompt. With `data.continued` every
        validation window is: what validates is then text as serving meets it.
        """
        text = document.text
        share = 1.0 if self.data.continued else 0.0
        starts = [match.start() for match in DEFINITION.finditer(text)]
        starts = starts or [match.start() for match in LINE.finditer(text)]
        starts.sort(key=lambda start: stable_hash(row.id, start))
        found = 0
        for start in starts[: 4 * WINDOWS_HELD_OUT]:
            cut = text[start : start + CHARACTERS_PER_TOKEN * self.data.max_length]
            ids = self.prefix + chat.plain_ids(self.tokenizer, cut)
            if len(ids) >= self.data.prompt_tokens + MIN_WINDOW:
                ids = ids[: self.data.max_length]
                name = f"{row.id}:{start}"
                if row.split == "evaluation":
                    yield self._example(name, row.domain, ids, self.data.prompt_tokens)
                else:
                    yield self._learnt(name, row.domain, ids, share)
                found += 1
            if found == WINDOWS_HELD_OUT:
                return

    def _learnt(self, name: str, domain: str, ids: list[int], share: float) -> Example:
        """The whole window; for a `share` of the windows, by lot, its first tokens as a prompt."""
        prompt = self.data.prompt_tokens
        if len(ids) > prompt and stable_hash("continued", name) < share * 2**64:
            return self._example(name, domain, ids[:prompt], prompt)
        return self._example(name, domain, ids, 0)

    def _completion(self, content: Completion) -> tuple[list[int], list[int]]:
        prompt = self.prefix + chat.plain_ids(self.tokenizer, content.prompt)
        if content.answer is None:
            return prompt, []
        chat.check_end(content.answer, self.tokenizer, self.eos_token_ids)
        answer = chat.plain_ids(self.tokenizer, content.answer)
        return prompt, chat.ended(answer, self.tokenizer, self.eos_token_ids)

    def _chat(self, row: Row, content: Chat) -> Iterator[Example]:
        """A row for each turn of the assistant; in evaluation for the last one only."""
        messages = chat.with_system(content.messages, self.target.system_prompt)
        kwargs = self.target.chat_template_kwargs
        if messages[-1]["role"] != "assistant":
            prompt = chat.prompt_ids(messages, self.tokenizer, kwargs, content.tools)
            yield from self._fit(row.id, row.domain, prompt, [])
            return
        ends = [i + 1 for i, m in enumerate(messages) if m["role"] == "assistant" and i > 0]
        for end in ends[-1:] if row.split == "evaluation" else ends:
            name = row.id if end == ends[-1] else f"{row.id}#{end}"
            prompt, answer = chat.answer_ids(
                messages[:end],
                self.tokenizer,
                kwargs,
                tools=content.tools,
                eos_token_ids=self.eos_token_ids,
            )
            yield from self._fit(name, row.domain, prompt, answer)

    def _fit(
        self, name: str, domain: str, prompt: list[int], answer: list[int]
    ) -> Iterator[Example]:
        """Cut at max_length; a row that would lose its whole answer is dropped."""
        if len(prompt) >= self.data.max_length:
            self.dropped["prompt as long as data.max_length or longer"] += 1
            return
        ids = (prompt + answer)[: self.data.max_length]
        yield self._example(name, domain, ids, len(prompt))

    def _example(self, name: str, domain: str, ids: Sequence[int], prompt_length: int) -> Example:
        return Example(name, domain, np.asarray(ids, dtype=np.int32), prompt_length)
