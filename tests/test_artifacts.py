"""A stage's folder: whole or absent, found again, redone when asked or when an input changed."""

import json
import os
import signal
import subprocess
import sys

import pytest

from distill.artifacts import MANIFEST, Artifact, build, load
from distill.errors import UserError


def note(calls):
    def produce(folder):
        calls.append(sorted(path.name for path in folder.iterdir()))
        (folder / "data").write_text("whole")
        return {"rows": 3}

    return produce


def make(root, calls, settings=None, inputs=(), **options) -> Artifact:
    return build("stage", root, settings or {"a": 1}, list(inputs), note(calls), **options)


def test_made_once_then_found(tmp_path):
    calls = []
    first, again = make(tmp_path, calls), make(tmp_path, calls)
    assert first.fresh
    assert not again.fresh
    assert first.path == again.path
    assert again.counts == {"rows": 3}
    assert len(calls) == 1
    assert (first.path / "data").read_text() == "whole"


def test_force_redoes_and_starts_from_nothing(tmp_path):
    calls = []
    first = make(tmp_path, calls)
    (first.path / "stale").touch()
    again = make(tmp_path, calls, force=True)
    assert again.fresh
    assert calls == [[], []]
    assert not (again.path / "stale").exists()


def test_changed_settings_or_input_redo_what_depends_on_them(tmp_path):
    calls = []
    corpus = make(tmp_path, calls, {"rows": 1})
    other = make(tmp_path, calls, {"rows": 2})
    assert make(tmp_path, calls, inputs=[corpus]).path != make(tmp_path, calls, inputs=[other]).path
    assert len(calls) == 4


def test_failed_work_stays_partial_and_goes_on(tmp_path):
    def fail(folder):
        (folder / "half").touch()
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        build("stage", tmp_path, {"a": 1}, [], fail)
    calls = []
    made = make(tmp_path, calls)
    assert calls == [["half"]]
    assert made.path.suffix == ""


def test_killed_while_committing_leaves_no_finished_folder(tmp_path):
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom distill.artifacts import build\n"
        "def produce(folder):\n    (folder / 'half').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "build('stage', Path(sys.argv[1]), {'a': 1}, [], produce)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not list(tmp_path.rglob(MANIFEST))
    calls = []
    make(tmp_path, calls)  # the lock of the killed process is gone with it
    assert calls == [["half"]]


def test_other_ranks_wait_for_rank_zero(tmp_path, monkeypatch):
    calls, together = [], []
    made = make(tmp_path, calls)
    monkeypatch.setenv("RANK", "1")
    assert make(tmp_path, calls).fingerprint == made.fingerprint
    assert make(tmp_path, together, collective=True).fingerprint == made.fingerprint
    assert len(calls) == 1
    assert together == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_root_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"paths\.output"):
        make(tmp_path, [])


def test_root_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"paths\.output"):
        make(tmp_path / "file", [])


def test_unfinished_folder_is_no_artifact(tmp_path):
    with pytest.raises(UserError, match="run the stage again"):
        load(tmp_path)


def test_manifest_tells_what_it_was_made_of(tmp_path):
    corpus = make(tmp_path, [])
    made = build("other", tmp_path, {"b": 2}, [corpus], note([]))
    manifest = json.loads((made.path / MANIFEST).read_text())
    assert manifest["inputs"] == {"stage": corpus.fingerprint}
    assert manifest["settings"] == {"b": 2}
    assert manifest["versions"]["python"] == sys.version.split()[0]
