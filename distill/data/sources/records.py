"""From records of a JSONL file or a hub dataset to rows: mended or refused, without duplicates.

    prompt | messages | turns      the request; `turns` are user turns, answered one after the other
    text | response                the answer to it; `text` alone is a raw document
    tools                          what the model may call, of `prompt` or `messages`
    format: completion             `prompt` is raw text to continue, not a chat message
    domain, id                     optional
    group                          optional: rows of one group (a conversation, a document) are held
                                   out together, and count as one piece of evidence

A message has a `role`, a `content` and what else the template can be given (`PARTS`, `LABELS`).
Anything else is not read, and is reported once for each field of a file.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distill.data.sources.rows import (
    PARTS,
    Chat,
    Completion,
    Content,
    Document,
    Message,
    Problem,
    Row,
)
from distill.data.sources.splits import assign_splits, stable_hash
from distill.data.sources.spool import Spool, Spooled
from distill.errors import UserError

ROLES = frozenset({"system", "user", "assistant", "tool"})
LABELS = ("name", "tool_call_id")
"""Keys of a message that say whose it is. A template may leave them out."""
READ = frozenset({"role", "content", *PARTS, *LABELS})
"""Keys of a message that are read."""
NOTHING = (None, "", [], {})
"""Values of a field that say nothing."""
MOST_FILES = 16
"""Of one table."""
SHOWN = 3
"""So many bad records are shown of an input that has no good one."""


class BadRecordError(Exception):
    """The record cannot be used; the message says why."""


@dataclass
class RecordReader:
    """Reads one record.

    repairs: what had to be mended in it. unread: its fields, and those of its messages, that hold
    something and are not read.
    """

    max_characters: int
    repairs: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)

    def content(self, record: Mapping[str, Any]) -> Content:
        """The record's content.

        Raises:
            BadRecordError: it cannot be used as it is meant.
        """
        self.unread |= {name for name, value in record.items() if value not in NOTHING}
        self.unread -= {"id", "domain", "group", "format"}
        tools = self._tools(self._take(record, "tools"))
        content = self._content(record, tools)
        if tools and (not isinstance(content, Chat) or content.follow_ups):
            raise BadRecordError("`tools` go with `messages` or a chat `prompt` only")
        return content

    def _content(self, record: Mapping[str, Any], tools: tuple[Any, ...]) -> Content:
        if record.get("turns") is not None and record.get("messages") is None:
            turns = self._turns(self._take(record, "turns"))
            return Chat((user(turns[0]),), turns[1:])
        bare = record.get("messages") is None and "prompt" not in record
        text = self._optional_text(record, "text")
        if bare:
            if text is None:
                raise BadRecordError("no `prompt`, `messages` or `text`")
            return Document(text)
        answer = self._optional_text(record, "response") if text is None else text
        if record.get("messages") is not None:
            return Chat(self._messages(self._take(record, "messages"), answer), tools=tools)
        prompt = self._text(self._take(record, "prompt"), "prompt")
        if record.get("format") == "completion":
            return Completion(prompt, answer)
        reply = (assistant(answer),) if answer is not None else ()
        return Chat((user(prompt), *reply), tools=tools)

    def _take(self, record: Mapping[str, Any], name: str) -> Any:
        """The field's value, which counts as read."""
        self.unread.discard(name)
        return record.get(name)

    def _optional_text(self, record: Mapping[str, Any], name: str) -> str | None:
        value = self._take(record, name)
        return None if value is None else self._text(value, name)

    def _text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            kind = "null" if value is None else type(value).__name__
            raise BadRecordError(f"`{name}` must be text, not {kind}")
        if len(value) > self.max_characters:
            raise BadRecordError(
                f"`{name}` has {len(value)} characters, more than {self.max_characters}"
            )
        text = self._mended(value, name)
        if not text.strip():
            raise BadRecordError(f"`{name}` is empty")
        return text

    def _mended(self, text: str, name: str) -> str:
        mended = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if mended != text:
            self.repairs.append(f"lone surrogate in `{name}` replaced")
        if "\0" in mended:
            mended = mended.replace("\0", "")
            self.repairs.append(f"NUL in `{name}` removed")
        if "\r" in mended:
            mended = mended.replace("\r\n", "\n").replace("\r", "\n")
            self.repairs.append(f"CR line ends in `{name}` changed to LF")
        return mended

    def _messages(self, value: object, answer: str | None) -> tuple[Message, ...]:
        if not isinstance(value, list) or not value:
            raise BadRecordError("`messages` must be a list that is not empty")
        messages = [self._message(message) for message in value]
        if not any(message["role"] == "user" for message in messages):
            raise BadRecordError("no user turn in `messages`")
        if answer is not None:
            messages.append(assistant(answer))
        if messages[-1]["role"] not in ("user", "assistant", "tool"):
            raise BadRecordError(f"`messages` end with a {messages[-1]['role']} turn")
        return tuple(messages)

    def _message(self, value: object) -> Message:
        if not isinstance(value, Mapping) or value.get("role") not in tuple(ROLES):
            raise BadRecordError(
                f"each message needs a `role` out of {sorted(ROLES)} and a `content`"
            )
        more = {name for name, inner in value.items() if inner not in NOTHING} - READ
        self.unread |= {f"messages.{name}" for name in more}
        message: Message = {"role": value["role"], "content": ""}
        for name in (*PARTS, *LABELS):
            if value.get(name):
                message[name] = self._part(value[name], name)
        if value.get("content") or "tool_calls" not in message:
            message["content"] = self._text(value.get("content"), f"content of the {value['role']}")
        return message

    def _part(self, value: object, name: str) -> Any:
        if name == "tool_calls":
            value = _with_arguments(value)
        if isinstance(value, str):
            return self._text(value, name)
        size = len(json.dumps(value, default=str))
        if size > self.max_characters:
            raise BadRecordError(f"`{name}` has {size} characters, more than {self.max_characters}")
        return self._mended_inside(value, name)

    def _tools(self, value: object) -> tuple[Any, ...]:
        """What the model may call; datasets often hold it as JSON text."""
        if isinstance(value, str) and value.strip():
            try:
                value = json.loads(value)
            except ValueError as error:
                raise BadRecordError(f"`tools` is text that is not JSON: {error}") from error
        if not value:
            return ()
        if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
            raise BadRecordError("`tools` must be a list of objects")
        return tuple(self._part(value, "tools"))

    def _mended_inside(self, value: Any, name: str) -> Any:
        """The same value with every text in it mended."""
        if isinstance(value, str):
            return self._mended(value, name)
        if isinstance(value, Mapping):
            return {
                self._mended(str(key), name): self._mended_inside(inner, name)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._mended_inside(inner, name) for inner in value]
        return value

    def _turns(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise BadRecordError("`turns` must be a list that is not empty")
        return tuple(self._text(turn, "turns") for turn in value)


def _with_arguments(calls: object) -> object:
    """Tool calls whose arguments are an object, as a server hands them to the template.

    Requests and data sets carry them as JSON text.
    """
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        raise BadRecordError("`tool_calls` must be a list of objects")
    found = []
    for call in calls:
        function = call.get("function", call)
        arguments = function.get("arguments") if isinstance(function, Mapping) else None
        if isinstance(arguments, str):
            try:
                function = {**function, "arguments": json.loads(arguments)}
            except ValueError as error:
                raise BadRecordError(f"arguments in `tool_calls` are not JSON: {error}") from error
        found.append({**call, "function": function} if "function" in call else function)
    return found


def user(content: str) -> Message:
    """A message of the user's."""
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    """A message of the assistant's."""
    return {"role": "assistant", "content": content}


@dataclass(frozen=True, slots=True)
class Entry:
    """A record that could be read, before it has a split.

    group: the record's own, else its request. request: a hash of what it opens with.
    """

    id: str
    domain: str
    group: str
    request: str
    content: Spooled
    file: str
    line: int


@dataclass
class Table:
    """Reads records of several files; ids and contents are unique over all of them.

    problems: what was skipped, mended or not read. Contents go to disk, and what is unique is known
    by 64 bits of its hash, so a table of many rows takes little memory.
    """

    max_characters: int
    problems: list[Problem] = field(default_factory=list)
    _spool: Spool = field(default_factory=Spool)
    _files: list[str] = field(default_factory=list)
    _seen: dict[int, int] = field(default_factory=dict)
    """Hash of an id or a content -> its line * MOST_FILES + the number of its file."""

    def read(
        self, file: str, records: Iterable[tuple[int, Mapping[str, Any] | BadRecordError]]
    ) -> list[Entry]:
        """The records of a file that can be used; the others are in `problems`."""
        self._files.append(file)
        entries = []
        unread: dict[str, tuple[int, int]] = {}  # a field's first line, and its rows
        for line, record in records:
            reader = RecordReader(self.max_characters)
            try:
                entries.append(self._entry(record, reader, line))
            except BadRecordError as bad:
                self.problems.append(Problem(file, line, str(bad)))
                continue
            except RecursionError:
                self.problems.append(Problem(file, line, "nested too deeply"))
                continue
            if reader.repairs:
                self.problems.append(Problem(file, line, "; ".join(reader.repairs), "repaired"))
            for name in reader.unread:
                first, rows = unread.get(clean(name), (line, 0))
                unread[clean(name)] = first, rows + 1
        self.problems += [
            Problem(file, first, f"`{name}` is not read (rows with it: {rows})", "kept")
            for name, (first, rows) in sorted(unread.items())
        ]
        return entries

    def _entry(
        self, record: Mapping[str, Any] | BadRecordError, reader: RecordReader, line: int
    ) -> Entry:
        if isinstance(record, BadRecordError):
            raise record
        content = reader.content(record)
        key = content_hash(content)
        identity = f"{key:016x}"
        if record.get("id") is not None:
            identity = clean(record["id"])
            self._refuse_seen("id", stable_hash("id", identity), line)
        self._refuse_seen("content", key, line)
        # Many rows share one domain, and may share its text.
        domain = sys.intern(clean(record.get("domain") or "default"))
        request = f"{stable_hash(opening(content)):016x}"
        named = record.get("group")
        group = request if named is None else f"{stable_hash('group', clean(named)):016x}"
        kept = self._spool.put(content)
        return Entry(identity, domain, group, request, kept, self._files[-1], line)

    def _refuse_seen(self, what: str, value: int, line: int) -> None:
        """Raise BadRecordError for an id or a content of an earlier row."""
        here = line * MOST_FILES + len(self._files) - 1
        first = self._seen.setdefault(value, here)
        if first != here:
            earlier, file = divmod(first, MOST_FILES)
            raise BadRecordError(f"same {what} as {self._files[file]}:{earlier}")


def content_hash(content: Content) -> int:
    """A hash of the content. That of a row without tools is what it was before there were any."""
    if isinstance(content, Chat) and content.tools:
        return stable_hash(content, json.dumps(content.tools, sort_keys=True))
    return stable_hash(content)


def clean(value: object) -> str:
    """A label as text that any file format can store."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def opening(content: Content) -> str:
    """The request that a row begins with: two answers to one prompt belong in the same split."""
    if isinstance(content, Chat):
        return next(m["content"] for m in content.messages if m["role"] == "user")
    return content.prompt if isinstance(content, Completion) else content.text


def split_rows(
    training: list[Entry],
    held_out: list[Entry],
    fractions: tuple[float, float],
    problems: list[Problem],
) -> list[Row]:
    """Rows in splits; with `held_out` entries these are the evaluation and nothing else is.

    A training entry that opens like a held-out one, or is of its group, is left out and added to
    `problems`. fractions: of the groups, for validation and for evaluation.
    """
    groups = {entry.group for entry in held_out}
    validation, evaluation = fractions
    splits = assign_splits(
        (entry.group for entry in training if entry.group not in groups),
        validation,
        0.0 if held_out else evaluation,
    )
    splits |= dict.fromkeys(groups, "evaluation")
    requests = {entry.request for entry in held_out}
    requests |= {entry.request for entry in training if splits[entry.group] != "train"}
    rows = []
    for entry in training:
        split = splits[entry.group]
        if entry.group not in groups and (split != "train" or entry.request not in requests):
            rows.append(row(entry, split))
            continue
        alike = "prompt" if entry.request in requests else "group"
        problems.append(Problem(entry.file, entry.line, f"same {alike} as a held-out row"))
    return rows + [row(entry, "evaluation") for entry in held_out]


def row(entry: Entry, split: str) -> Row:
    """The entry as a row of a split."""
    return Row(entry.id, entry.domain, entry.group, split, entry.content)


def refuse_without_rows(name: str, entries: list[Entry], problems: list[Problem]) -> None:
    """Raise a UserError that shows the first problems, when nothing in `name` can be used."""
    if entries:
        return
    skipped = [p for p in problems if p.outcome == "skipped" and p.file == name]
    if not skipped:
        raise UserError(f"{name} is empty: it needs rows with `prompt`, `messages` or `text`.")
    shown = "; ".join(f"line {problem.line}: {problem.reason}" for problem in skipped[:SHOWN])
    raise UserError(
        f"{name} has no usable row, {len(skipped)} bad ones ({shown}): "
        "each needs `prompt`, `messages` or `text`."
    )
