"""Contents of rows on disk, so that a source of any size takes little memory.

A row keeps where its content lies, some hundred bytes whatever the content's length.
"""

import os
import pickle
import tempfile
import weakref
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from distill.errors import UserError


class Spool:
    """Values in a temporary file, each put once and read back as often as it is asked for.

    The file has no name, so no other process can write it, and it goes when nobody holds the spool.
    It lies in the folder of TMPDIR. UserError where that takes no file, or no more.
    """

    def __init__(self) -> None:
        with _room():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the spool
        weakref.finalize(self, self._file.close)
        self._ends = array("Q", [0])

    def put(self, value: Any) -> "Spooled":
        """Store a value; what is returned reads it back."""
        raw = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        with _room():
            self._file.write(raw)
        self._ends.append(self._file.tell())
        return Spooled(self, len(self._ends) - 2)

    def read(self, number: int) -> Any:
        """The value that was put as the `number`-th, counted from 0."""
        with _room():
            self._file.flush()
        start, end = self._ends[number], self._ends[number + 1]
        return pickle.loads(os.pread(self._file.fileno(), end - start, start))


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"rows cannot be kept in the temporary folder ({error.strerror}): name another one, "
            "with room for the data, in the environment variable TMPDIR"
        ) from error


@dataclass(frozen=True, slots=True)
class Spooled:
    """A value in a spool."""

    spool: Spool
    number: int

    def read(self) -> Any:
        """The value, anew with each call."""
        return self.spool.read(self.number)
