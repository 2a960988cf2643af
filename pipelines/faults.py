"""What the machine does to a job: a full disk, an unwritable place, SIGTERM, a rank that is lost.

Each ends the job with one line. What is finished stays, and the same command goes on from it.
"""

import errno
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from distill.errors import UserError
from distill.ranks import is_rank_zero

log = logging.getLogger(__name__)

FULL = (
    os.strerror(errno.ENOSPC),
    os.strerror(errno.EDQUOT),
    "disk is full",
    "PytorchStreamWriter failed",
    "file write failed",
)
"""What libraries say of a disk that takes no more: not all of them raise an OSError."""
OTHER_RANK = ("Connection closed by peer", "Connection reset by peer", "gloo", "NCCL", "TCPStore")
"""What torch.distributed says when a rank that is waited for is gone."""
TERMINATED = 128 + signal.SIGTERM


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn what the machine does into a UserError; a mistake of this code stays as it is."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        line = _line(error)
        if line is None:
            raise
        log.debug("in full:", exc_info=error)
        raise UserError(line) from error


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM leave the block as SystemExit(143), so that runs and locks are ended in order.

    Training has a handler of its own for its time, which saves first.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it more than once
        log.warning("stopped by SIGTERM; the same command goes on from here")
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _line(error: Exception) -> str | None:
    """One line for the error or for what it came from; None where that is no fault of a machine."""
    for one in _chain(error):
        text = str(one)
        if any(words in text for words in FULL):
            return (
                f"the disk is full ({_first_line(text)}): make room or choose another place with "
                "paths.output=/some/folder; the same command goes on from what is finished"
            )
    for one in _chain(error):
        if isinstance(one, OSError) and one.filename and one.strerror:
            return (
                f"cannot use {os.fsdecode(one.filename)} ({one.strerror}): mend it, or choose "
                "other places with paths.output=/some/folder and paths.cache=/some/folder"
            )
    if not is_rank_zero() and any(words in str(error) for words in OTHER_RANK):
        return "another rank ended, so this one does too; that rank's own message says why"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, or while handling what."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:160]
