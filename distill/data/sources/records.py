"""From one record of a JSONL file or a hub dataset to a row's content, mended or refused.

    prompt | messages | turns      the request; `turns` are user turns, answered one after the other
    text | response                the answer to it; `text` alone is a raw document
    format: completion             `prompt` is raw text to continue, not a chat message
    domain, id                     optional

Anything else in the record is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distill.data.sources.rows import Chat, Completion, Content, Document, Message

ROLES = frozenset({"system", "user", "assistant", "tool"})


class BadRecordError(Exception):
    """The record cannot be used; the message says why."""


@dataclass
class RecordReader:
    """Reads one record. `repairs` collects what had to be mended in it."""

    max_characters: int
    repairs: list[str] = field(default_factory=list)

    def content(self, record: Mapping[str, Any]) -> Content:
        answer = self._optional_text(record, "response")
        text = self._optional_text(record, "text")
        completion = record.get("format") == "completion"
        if record.get("messages") is not None:
            return Chat(self._messages(record["messages"], answer if text is None else text))
        if record.get("turns") is not None:
            turns = self._turns(record["turns"])
            return Chat((user(turns[0]),), turns[1:])
        if "prompt" not in record:
            if text is None:
                raise BadRecordError("no `prompt`, `messages` or `text`")
            return Document(text)
        prompt = self._text(record["prompt"], "prompt")
        answer = answer if text is None else text
        if completion:
            return Completion(prompt, answer)
        reply = (assistant(answer),) if answer is not None else ()
        return Chat((user(prompt), *reply))

    def _optional_text(self, record: Mapping[str, Any], name: str) -> str | None:
        value = record.get(name)
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
        if not isinstance(value, Mapping) or value.get("role") not in ROLES:
            raise BadRecordError(
                f"each message needs a `role` out of {sorted(ROLES)} and a `content`"
            )
        content = self._text(value.get("content"), f"content of the {value['role']}")
        return {"role": value["role"], "content": content}

    def _turns(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list) or not value:
            raise BadRecordError("`turns` must be a list that is not empty")
        return tuple(self._text(turn, "turns") for turn in value)


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}
