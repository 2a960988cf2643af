"""Records with their place in the input become rows: mended, without duplicates, in splits."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distill.data.sources.records import BadRecordError, RecordReader
from distill.data.sources.rows import Chat, Completion, Content, Problem, Row
from distill.data.sources.splits import assign_splits, stable_hash
from distill.errors import UserError

SHOWN = 3


@dataclass(frozen=True)
class Entry:
    """A record that could be read, before it has a split."""

    id: str
    domain: str
    group: str
    content: Content
    file: str
    line: int


@dataclass
class Table:
    """Reads records of several files; ids and contents are unique over all of them."""

    max_characters: int
    problems: list[Problem] = field(default_factory=list)
    _seen: dict[tuple[str, str], str] = field(default_factory=dict)

    def read(
        self, file: str, records: Iterable[tuple[int, Mapping[str, Any] | BadRecordError]]
    ) -> list[Entry]:
        entries = []
        for line, record in records:
            reader = RecordReader(self.max_characters)
            try:
                entries.append(self._entry(record, reader, file, line))
            except BadRecordError as bad:
                self.problems.append(Problem(file, line, str(bad)))
                continue
            if reader.repairs:
                self.problems.append(Problem(file, line, "; ".join(reader.repairs), repaired=True))
        return entries

    def _entry(
        self, record: Mapping[str, Any] | BadRecordError, reader: RecordReader, file: str, line: int
    ) -> Entry:
        if isinstance(record, BadRecordError):
            raise record
        content = reader.content(record)
        key = f"{stable_hash(content):016x}"
        identity = key if record.get("id") is None else clean(record["id"])
        for name, value in (("id", identity), ("content", key)):
            first = self._seen.setdefault((name, value), f"{file}:{line}")
            if first != f"{file}:{line}":
                raise BadRecordError(f"same {name} as {first}")
        domain = clean(record.get("domain") or "default")
        group = f"{stable_hash(opening(content)):016x}"
        return Entry(identity, domain, group, content, file, line)


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

    A training entry that opens like a held-out one is left out and added to `problems`.
    fractions: of the distinct prompts, for validation and for evaluation.
    """
    guarded = {entry.group for entry in held_out}
    leaks = [entry for entry in training if entry.group in guarded]
    problems += [Problem(e.file, e.line, "same prompt as a held-out row") for e in leaks]
    kept = [entry for entry in training if entry.group not in guarded]
    validation, evaluation = fractions
    splits = assign_splits(
        (entry.group for entry in kept), validation, 0.0 if held_out else evaluation
    )
    return [row(entry, splits[entry.group]) for entry in kept] + [
        row(entry, "evaluation") for entry in held_out
    ]


def row(entry: Entry, split: str) -> Row:
    return Row(entry.id, entry.domain, entry.group, split, entry.content)


def refuse_without_rows(name: str, entries: list[Entry], problems: list[Problem]) -> None:
    """UserError that shows the first problems, when nothing in `name` can be used."""
    if entries:
        return
    skipped = [problem for problem in problems if not problem.repaired and problem.file == name]
    if not skipped:
        raise UserError(f"{name} is empty: it needs rows with `prompt`, `messages` or `text`.")
    shown = "; ".join(f"line {problem.line}: {problem.reason}" for problem in skipped[:SHOWN])
    raise UserError(
        f"{name} has no usable row, {len(skipped)} bad ones ({shown}): "
        "each needs `prompt`, `messages` or `text`."
    )
