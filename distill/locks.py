"""Locks between processes, by `flock`: each falls with the process that holds it, however it ends.

A lock never makes the folder that it lies in, so that a process that comes late cannot bring back a
folder that was renamed meanwhile.
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distill.errors import UserError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
QUIET_SECONDS = 3.0
"""A wait that is longer than this is said."""
SECONDS_BETWEEN_LINES = 60.0
WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}
"""What `flock` answers on a file system that has no locks."""


@dataclass(frozen=True)
class Lock:
    """A lock that is held until `release`, or until the process ends."""

    path: Path
    descriptor: int

    def release(self) -> None:
        os.close(self.descriptor)


@contextmanager
def locked(path: Path, doing: str) -> Iterator[None]:
    """Hold the lock at `path`; wait for whoever has it. A long wait is said, with what it is for.

    doing: what the holder is doing, such as `making the corpus`.

    Raises:
        UserError: the file system has no locks.
        FileNotFoundError: the folder is not there.
    """
    lock = _wait(path, doing)
    try:
        yield
    finally:
        lock.release()


def try_lock(path: Path) -> Lock | None:
    """The lock at `path`, or None while another process holds it. Raises as `locked` does."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return Lock(path, descriptor)
            os.close(descriptor)  # its last holder removed the file, so a newcomer has another
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            if error.errno in WITHOUT_LOCKS:
                raise UserError(_no_locks(path.parent, error)) from error
            raise


def _wait(path: Path, doing: str) -> Lock:
    started = time.monotonic()
    due = QUIET_SECONDS
    while (lock := try_lock(path)) is None:
        waited = time.monotonic() - started
        if waited >= due:
            log.info("waiting for another process that is %s (%s)", doing, path)
            due = waited + SECONDS_BETWEEN_LINES
        time.sleep(POLL_SECONDS)
    return lock


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the file that was opened still has this name."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _no_locks(folder: Path, error: OSError) -> str:
    return (
        f"the file system of {folder} has no locks ({error.strerror}): mount it with them (NFS: "
        "local_lock=none; Lustre: flock), or choose another place with paths.output=/some/folder "
        "and paths.cache=/some/folder"
    )
