"""`hub`: a dataset by its name on the Hugging Face hub, or a local folder of parquet or JSON."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from distill.data.sources.records import (
    BadRecordError,
    Entry,
    Table,
    refuse_without_rows,
    split_rows,
)
from distill.data.sources.rows import Problem, Row
from distill.data.sources.splits import check_fractions
from distill.errors import UserError
from distill.files import files_sha256

NESTED = ("messages", "tools")
"""Fields of which Arrow gives every object all keys of any, as null where the row has none."""


@dataclass
class HubSource:
    """columns: our field (see `records.py`) → the dataset's column; empty when the names are ours.

    At most `max_rows` rows of a split are read; they are streamed, so nothing else is downloaded
    and no copy is kept. evaluation_split: the split that is held out; without it, a share of
    `split` is.
    """

    name: str
    columns: dict[str, str] = field(default_factory=dict)
    subset: str | None = None
    revision: str | None = None
    split: str = "train"
    evaluation_split: str | None = None
    max_rows: int = 50_000
    validation_fraction: float = 0.05
    evaluation_fraction: float = 0.05
    max_characters: int = 500_000
    _table: Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._table = Table(self.max_characters)

    @property
    def problems(self) -> list[Problem]:
        """What was skipped or mended."""
        _ = self._rows
        return self._table.problems

    def check(self) -> None:
        """Raise a UserError where no row can be used."""
        _ = self._rows

    def rows(self) -> Iterator[Row]:
        """Rows in the order of the dataset."""
        return iter(self._rows)

    @cached_property
    def _rows(self) -> list[Row]:
        check_fractions(self.validation_fraction, self.evaluation_fraction)
        held_out = self._entries(self.evaluation_split) if self.evaluation_split else []
        training = self._entries(self.split)
        fractions = (self.validation_fraction, self.evaluation_fraction)
        return split_rows(training, held_out, fractions, self._table.problems)

    def _entries(self, split: str) -> list[Entry]:
        file = f"{self.name}[{split}]"
        entries = self._table.read(file, self._records(split))
        refuse_without_rows(file, entries, self._table.problems)
        return entries

    def _records(self, split: str) -> Iterator[tuple[int, Mapping[str, Any] | BadRecordError]]:
        try:
            for line, record in enumerate(self._stream(split), start=1):
                if line == 1:
                    self._check_columns(record)
                ours = {name: record[theirs] for name, theirs in self.columns.items()} or record
                given = {name: without_nulls(ours[name]) for name in NESTED if name in ours}
                yield line, {**ours, **given}
        except UserError:
            raise
        except Exception as error:  # whatever its readers and decoders raise: it is their input
            raise UserError(
                f"The dataset {self.name!r} (split {split!r}) cannot be read: "
                f"{' '.join(str(error).split())}. Check data.source.name, subset, split and "
                "revision; where files differ in a column's type, use data=jsonl with one file."
            ) from error

    def _stream(self, split: str) -> Iterator[dict[str, Any]]:
        """The split's rows, with what audio, images and video hold left as it is stored."""
        import datasets

        stream = datasets.load_dataset(
            self.name, self.subset, split=split, revision=self.revision, streaming=True
        )
        for name, kind in (stream.features or {}).items():
            if isinstance(kind, datasets.Audio | datasets.Image | datasets.Video):
                stream = stream.cast_column(name, type(kind)(decode=False))
        return iter(stream.take(self.max_rows))

    def _check_columns(self, record: Mapping[str, Any]) -> None:
        missing = sorted(set(self.columns.values()) - set(record))
        if missing:
            raise UserError(
                f"{self.name} has no column {missing}: its columns are {sorted(record)}; map the "
                "fields with data.source.columns."
            )

    def fingerprint(self) -> dict[str, Any]:
        """The dataset by its commit or bytes, and the settings that decide the rows."""
        return {
            "source": "hub",
            "name": None if self._folder.is_dir() else self.name,
            "content": self._content,
            "splits": [self.split, self.evaluation_split, self.subset],
            "columns": dict(self.columns),
            "max_rows": self.max_rows,
            "fractions": [self.validation_fraction, self.evaluation_fraction],
            "max_characters": self.max_characters,
        }

    @property
    def _folder(self) -> Path:
        return Path(self.name).expanduser()

    @cached_property
    def _content(self) -> str:
        """The commit on the hub, or the SHA-256 of a local folder's files."""
        folder = self._folder
        if not folder.is_dir():
            from huggingface_hub import HfApi

            return HfApi().dataset_info(self.name, revision=self.revision).sha or "unknown"
        return files_sha256(folder, sorted(path for path in folder.rglob("*") if path.is_file()))


def without_nulls(value: Any) -> Any:
    """The value with no null in any object, at any depth."""
    if isinstance(value, Mapping):
        return {k: without_nulls(inner) for k, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
