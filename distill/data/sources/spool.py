"""Contents of rows on disk, so that a source of any size takes little memory.

A row keeps where its content lies, some hundred bytes whatever the content's length.
"""

import os
import pickle
import tempfile
import weakref
from array import array
from dataclasses import dataclass
from typing import Any


class Spool:
    """Values in a temporary file, each put once and read back as often as it is asked for.

    The file has no name, so no other process can write it, and it goes when nobody holds the spool.
    It lies in the folder of TMPDIR.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the spool
        weakref.finalize(self, self._file.close)
        self._ends = array("Q", [0])

    def put(self, value: Any) -> "Spooled":
        """Store a value; what is returned reads it back."""
        self._file.write(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        self._ends.append(self._file.tell())
        return Spooled(self, len(self._ends) - 2)

    def read(self, number: int) -> Any:
        """The value that was put as the `number`-th, counted from 0."""
        self._file.flush()
        start, end = self._ends[number], self._ends[number + 1]
        return pickle.loads(os.pread(self._file.fileno(), end - start, start))


@dataclass(frozen=True, slots=True)
class Spooled:
    """A value in a spool."""

    spool: Spool
    number: int

    def read(self) -> Any:
        """The value, anew with each call."""
        return self.spool.read(self.number)
