"""`jsonl`: prompts, chats or raw text, one JSON object a line (fields: see `records.py`)."""

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from distill.data.sources.records import (
    BadRecordError,
    Table,
    refuse_without_rows,
    split_rows,
)
from distill.data.sources.rows import Problem, Row
from distill.data.sources.splits import check_fractions
from distill.errors import UserError

OTHER_FORMATS = (
    (b"\x1f\x8b", "is compressed with gzip: unpack it with `gunzip FILE`"),
    (b"BZh", "is compressed with bzip2: unpack it with `bunzip2 FILE`"),
    (b"\xfd7zXZ", "is compressed with xz: unpack it with `unxz FILE`"),
    (b"\x28\xb5\x2f\xfd", "is compressed with Zstandard: unpack it with `unzstd FILE`"),
    (b"PK\x03\x04", "is a zip archive: unpack it with `unzip FILE`"),
    (b"PAR1", "is Parquet: use data=hub with data.source.name set to its folder"),
    (b"ARROW1", "is Arrow: use data=hub with data.source.name set to a folder of Parquet"),
)
"""First bytes of what files are in place of JSON lines, and what to do."""
WIDE = (
    ("UTF-32", re.compile(rb"\xff\xfe\0\0|\0\0\xfe\xff|[^\0]\0\0\0|\0\0\0[^\0]")),
    ("UTF-16", re.compile(rb"\xff\xfe|\xfe\xff|[^\0]\0|\0[^\0]")),
)
"""Encodings of several bytes a character, by how a file in them begins."""
ARRAY = re.compile(rb"\[\s*(\{.*)?", re.DOTALL)
"""The first line of a JSON array of objects."""
OPENED = b"{"
"""The first line of an object that is laid out over several."""
LONGEST_MAGIC = 8


class Digest(Protocol):
    """A hash that is fed piece by piece."""

    def update(self, data: bytes, /) -> None: ...


def read_records(
    path: Path, digest: Digest | None = None
) -> Iterator[tuple[int, Mapping[str, Any] | BadRecordError]]:
    """(line number, record) of each line that is not blank; an error for what is no object.

    digest: fed with all bytes of the file, so that it need not be read again for its hash.

    Raises:
        UserError: the file is of another kind, which the message names.
    """
    with path.open("rb") as file:
        _refuse_other_formats(path, file.peek(LONGEST_MAGIC)[:LONGEST_MAGIC])
        first = True
        for line, raw in enumerate(file, start=1):
            if digest is not None:
                digest.update(raw)
            stripped = raw.strip().removeprefix(b"\xef\xbb\xbf")
            if not stripped:
                continue
            if first and ARRAY.fullmatch(stripped):
                raise UserError(
                    f"{path} is a JSON array, not one object a line: write its elements as lines, "
                    "as `jq -c '.[]' FILE` does"
                )
            if first and stripped == OPENED:
                raise UserError(
                    f"{path} has objects over several lines: write each as one line, as "
                    "`jq -c . FILE` does"
                )
            first = False
            yield line, parse_record(stripped)


def _refuse_other_formats(path: Path, head: bytes) -> None:
    for magic, what in OTHER_FORMATS:
        if head.startswith(magic):
            raise UserError(f"{path} {what}")
    for name, beginning in WIDE:
        if beginning.match(head):
            raise UserError(
                f"{path} is {name} text, not UTF-8: convert it with `iconv -f {name} -t UTF-8 FILE`"
            )


def parse_record(raw: bytes) -> Mapping[str, Any] | BadRecordError:
    """The object on a line, or why there is none."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        return BadRecordError(f"not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        return BadRecordError(f"not JSON: {error}")
    except RecursionError:
        return BadRecordError("nested too deeply")
    except ValueError:  # Python refuses to read it, since the time grows with the square
        return BadRecordError(f"a number of more than {sys.get_int_max_str_digits()} digits")
    return record if isinstance(record, dict) else BadRecordError("not a JSON object")


@dataclass(frozen=True)
class _Content:
    """What one reading of the files gave. sha256: of each file, in the order of the paths."""

    rows: list[Row]
    problems: list[Problem]
    sha256: list[str]


@dataclass
class JsonlSource:
    """evaluation_path: a file of held-out rows; without it, a share of `path` is held out.

    Shares are of distinct prompts, chosen by hash. Rows above `max_characters` are skipped. The
    files are read once, by whichever method is called first.
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
    def _read(self) -> _Content:
        check_fractions(self.validation_fraction, self.evaluation_fraction)
        for path in self._paths:
            if not path.is_file():
                what = "is a folder" if path.is_dir() else "does not exist"
                raise UserError(f"{path} {what}: give data.source.path a JSONL file.")
        table = Table(self.max_characters)
        digests = {path: hashlib.sha256() for path in self._paths}
        # The held-out file first: of two equal rows the training one is the duplicate.
        entries = {
            path: table.read(str(path), read_records(path, digests[path]))
            for path in reversed(self._paths)
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
        sha256 = [digests[path].hexdigest() for path in self._paths]
        return _Content(rows, table.problems, sha256)

    @property
    def problems(self) -> list[Problem]:
        """What was skipped or mended."""
        return self._read.problems

    def check(self) -> None:
        """Raise a UserError where no row can be used."""
        _ = self._read

    def rows(self) -> Iterator[Row]:
        """Rows in the order of the file, the held-out file's last."""
        return iter(self._read.rows)

    def fingerprint(self) -> dict[str, Any]:
        """The files by their bytes, and the settings that decide the rows."""
        return {
            "source": "jsonl",
            "sha256": self._read.sha256,
            "fractions": [self.validation_fraction, self.evaluation_fraction],
            "max_characters": self.max_characters,
        }
