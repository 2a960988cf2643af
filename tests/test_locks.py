"""Locks: they fall with their process, a wait is said, a file system without them is one line."""

import errno
import os
import subprocess
import sys
import threading
import time

import pytest

from distill import locks
from distill.errors import UserError
from distill.locks import locked, try_lock

HOLDER = """
import sys, time
from pathlib import Path
from distill.locks import locked
with locked(Path(sys.argv[1]), "holding"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_one_holder_at_a_time(tmp_path):
    lock = try_lock(tmp_path / "a.lock")
    assert lock is not None
    assert try_lock(tmp_path / "a.lock") is None
    lock.release()
    again = try_lock(tmp_path / "a.lock")
    assert again is not None
    again.release()


def test_the_lock_of_a_killed_process_is_free(tmp_path):
    path = tmp_path / "a.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert try_lock(path) is None
    holder.kill()
    holder.communicate()
    with locked(path, "holding"):
        pass


def test_a_long_wait_is_said_once_and_names_what_it_is_for(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr(locks, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.05)
    lock = try_lock(tmp_path / "a.lock")
    assert lock is not None
    threading.Timer(0.6, lock.release).start()
    with locked(tmp_path / "a.lock", "making the corpus"):
        pass
    [said] = caplog.messages
    assert "waiting for another process that is making the corpus" in said


def test_a_lock_makes_no_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        try_lock(tmp_path / "renamed" / "a.lock")
    assert not list(tmp_path.iterdir())


def test_a_lock_whose_file_was_removed_is_not_shared_with_a_newcomer(tmp_path, monkeypatch):
    """The holder removes the file while another one waits at the old file."""
    path, flock = tmp_path / "a.lock", locks.fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(locks.fcntl, "flock", flock)
        path.unlink()
        flock(descriptor, how)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    lock = try_lock(path)
    assert lock is not None
    assert os.path.samestat(path.stat(), os.fstat(lock.descriptor))
    lock.release()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, code):
    def refuse(descriptor, how):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    started = time.monotonic()
    with (
        pytest.raises(UserError, match=r"has no locks .*paths\.output"),
        locked(tmp_path / "a.lock", "x"),
    ):
        pass
    assert time.monotonic() - started < 5
