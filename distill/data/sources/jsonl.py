"""`jsonl`: prompts, chats or raw text, one JSON object a line (fields: see `records.py`)."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from distill.data.sources.records import BadRecordError
from distill.data.sources.rows import Problem, Row
from distill.data.sources.splits import check_fractions
from distill.data.sources.table import Table, refuse_without_rows, split_rows
from distill.errors import UserError


def read_records(path: Path) -> Iterator[tuple[int, Mapping[str, Any] | BadRecordError]]:
    """(line number, record) of each line that is not blank; an error for what is no object."""
    for line, raw in enumerate(path.read_bytes().split(b"\n"), start=1):
        stripped = raw.strip().removeprefix(b"\xef\xbb\xbf")
        if stripped:
            yield line, parse_record(stripped)


def parse_record(raw: bytes) -> Mapping[str, Any] | BadRecordError:
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecordError(f"not UTF-8 at byte {error.start}")
    except (json.JSONDecodeError, RecursionError) as error:
        return BadRecordError(f"not JSON: {error}")
    return record if isinstance(record, dict) else BadRecordError("not a JSON object")


@dataclass
class JsonlSource:
    """evaluation_path: a file of held-out rows; without it, a share of `path` is held out.

    Shares are of distinct prompts, chosen by hash. Rows above `max_characters` are skipped.
    """

    path: str
    evaluation_path: str | None = None
    validation_fraction: float = 0.05
    evaluation_fraction: float = 0.05
    max_characters: int = 500_000

    @property
    def _paths(self) -> list[Path]:
        paths = [self.path, self.evaluation_path]
        return [Path(path).expanduser() for path in paths if path is not None]

    @cached_property
    def _read(self) -> tuple[list[Row], list[Problem]]:
        check_fractions(self.validation_fraction, self.evaluation_fraction)
        for path in self._paths:
            if not path.is_file():
                raise UserError(f"{path} does not exist: give data.source.path a JSONL file.")
        table = Table(self.max_characters)
        # The held-out file first: of two equal rows the training one is the duplicate.
        entries = {
            path: table.read(str(path), read_records(path)) for path in reversed(self._paths)
        }
        for path, found in entries.items():
            refuse_without_rows(str(path), found, table.problems)
        training, *held_out = (entries[path] for path in self._paths)
        rows = split_rows(
            training,
            held_out[0] if held_out else [],
            (self.validation_fraction, self.evaluation_fraction),
            table.problems,
        )
        return rows, table.problems

    @property
    def problems(self) -> list[Problem]:
        return self._read[1]

    def check(self) -> None:
        _ = self._read

    def rows(self) -> Iterator[Row]:
        return iter(self._read[0])

    def fingerprint(self) -> dict[str, Any]:
        return {
            "source": "jsonl",
            "sha256": [hashlib.sha256(path.read_bytes()).hexdigest() for path in self._paths],
            "fractions": [self.validation_fraction, self.evaluation_fraction],
            "max_characters": self.max_characters,
        }
