"""Contents of rows on disk."""

import errno
import os
import tempfile

import pytest

from distill.data.sources.rows import Chat, Completion
from distill.data.sources.spool import Spool
from distill.errors import UserError


def test_values_come_back_in_any_order_and_while_more_are_put():
    values = [Completion("a", None), Chat(({"role": "user", "content": "ü"},), ("b",)), "x" * 10**6]
    spool, kept = Spool(), []
    for value in values:
        kept.append(spool.put(value))
        assert kept[0].read() == values[0]
    assert [one.read() for one in reversed(kept)] == values[::-1]
    assert kept[1].read() is not kept[1].read()


def test_no_file_of_a_name_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = Spool().put("x")
    assert kept.read() == "x"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")  # noqa: PTH110
def test_a_full_temporary_folder_is_one_line(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb+", 0))  # noqa: PTH123, SIM115
    with pytest.raises(UserError, match="TMPDIR"):
        Spool().put("x")


def test_no_temporary_folder_is_one_line(monkeypatch):
    def refused():
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(UserError, match=r"Permission denied.*TMPDIR"):
        Spool()
