"""How ranks that wait for rank zero learn that it is gone, whatever ended it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distill.errors import UserError
from distill.files import read_json, write_json
from distill.locks import try_lock

FAILED = ".failed"
"""Suffix of the note that rank zero leaves for the others when a stage fails."""
GRACE_SECONDS = 10.0
"""A stage that rank zero was at and that nobody has been at for so long will not be finished."""
_STARTED = time.time()


@contextmanager
def failure_noted(folder: Path) -> Iterator[None]:
    """Leave a note for the other ranks, beside the folder, when the block fails."""
    note = folder.with_suffix(FAILED)
    note.unlink(missing_ok=True)
    try:
        yield
    except BaseException as error:
        with suppress(OSError):  # as on a full disk
            write_json(note, {"time": time.time(), "error": type(error).__name__})
        raise


class Watch:
    """Whether rank zero is still to be waited for.

    It is gone when it left a note, or when its lock was seen to be held and is free for long. A
    lock that is only the host's own is never seen to be held from another host, where the note and
    the launcher remain.
    """

    def __init__(self, stage: str, folder: Path):
        self._stage, self._folder = stage, folder
        self._seen = False
        self._free_since: float | None = None

    def look(self) -> None:
        """UserError once rank zero is known to be gone."""
        if self._noted() or self._abandoned():
            raise UserError(
                f"{self._stage}: rank zero failed or was killed, so this rank ends too; "
                "rank zero's own message says why"
            )

    def _noted(self) -> bool:
        try:
            return read_json(self._folder.with_suffix(FAILED))["time"] > _STARTED
        except (OSError, ValueError):
            return False

    def _abandoned(self) -> bool:
        lock = try_lock(lock_of(self._folder))
        if lock is None:
            self._seen, self._free_since = True, None
            return False
        lock.release()
        if self._free_since is None:
            self._free_since = time.monotonic()
        return self._seen and time.monotonic() - self._free_since > GRACE_SECONDS


def lock_of(folder: Path) -> Path:
    """The lock of who works on a stage's folder."""
    return folder.with_suffix(".lock")
