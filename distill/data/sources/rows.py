"""What a source yields: a row, the three kinds of content, and the problems met on the way."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from distill.data.sources.spool import Spooled

Message = dict[str, Any]
"""`role` (system, user, assistant or tool), `content`, and any of `PARTS`."""
PARTS = ("tool_calls", "function_call", "reasoning_content", "reasoning", "thinking")
"""What a message says beside its content. A row whose template leaves it out is not used."""


@dataclass(frozen=True)
class Document:
    """Raw text, learnt from whole: cut into windows for training, into prompts for evaluation."""

    text: str


@dataclass(frozen=True)
class Completion:
    """A raw prompt, continued without a template. No answer: the target writes it."""

    prompt: str
    answer: str | None = None


@dataclass(frozen=True)
class Chat:
    """Messages for the serving template. A last message of the user's is for the target to answer.

    follow_ups: user turns still to come, each after the answer to the one before. The corpus holds
    the first answer's prompt only. tools: what the model is told that it may call.
    """

    messages: tuple[Message, ...]
    follow_ups: tuple[str, ...] = ()
    # Not in the text from which an id is made: rows without tools keep theirs.
    tools: tuple[dict[str, Any], ...] = field(default=(), repr=False)


Content = Document | Completion | Chat
CUT = re.compile(r"[@:#]\d+$")
"""What an example's id has behind its row's, where that was cut: `@start` or `:start` of a window
of a document, `#end` of a conversation up to an earlier answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """group: rows of one group (a module, one prompt) never stand in two splits.

    split: `train`, `validation` or `evaluation`. kept: the content, or where it lies. part, weight:
    of a mixture.
    """

    id: str
    domain: str
    group: str
    split: str
    kept: Content | Spooled
    part: str = ""
    weight: float = 1.0

    @property
    def content(self) -> Content:
        """What the row says; a spooled one is read anew with each call."""
        return self.kept.read() if isinstance(self.kept, Spooled) else self.kept


@dataclass(frozen=True)
class Problem:
    """What was wrong with a row of the input. `line` counts from 1.

    outcome: `skipped`; `repaired`, and kept; or `kept` without what nothing here reads. Of the last
    kind each file has one for each field, at its first line.
    """

    file: str
    line: int
    reason: str
    outcome: str = "skipped"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.outcome}: {self.reason}"


class Source(Protocol):
    """rows() is deterministic; check() raises `UserError` and needs no model and no tokenizer.

    fingerprint() holds all that decides the rows: content, not the place where it lies. One
    instance serves a whole job, so what it reads it reads once.
    """

    @property
    def problems(self) -> list[Problem]: ...

    def rows(self) -> Iterator[Row]: ...

    def check(self) -> None: ...

    def fingerprint(self) -> dict[str, Any]: ...
