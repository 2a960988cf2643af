"""A stage's folder: whole or absent, found again, redone when asked or when an input changed."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from distill.artifacts import MANIFEST, Artifact, build, fingerprint, load
from distill.errors import UserError
from distill.watch import Watch


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


def shards(folder):
    """A stage that makes three pieces one by one, and a summary of them."""
    made = []
    for number in range(3):
        path = folder / "shards" / f"{number}.bin"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(range(100)) * (number + 1))
            made.append(number)
    if anew := not (folder / "whole").exists():
        (folder / "whole").mkdir()
        (folder / "whole" / "sizes").write_text("100 200 300")
    return {"made": made, "summary": anew}


def build_shards(root):
    return build("cache", root, {"a": 1}, [], shards, pieces=["shards/*.bin"])


def cut(path):
    path.write_bytes(path.read_bytes()[:50])


def zero_the_end(path):
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (cut, "has 50 of 200 bytes"),
        (os.remove, "is missing"),
        (zero_the_end, "holds other bytes than were written"),
    ],
)
def test_a_damaged_piece_is_named_and_made_again_alone(tmp_path, caplog, harm, says):
    """CACHE-DAMAGE."""
    first = build_shards(tmp_path)
    whole = {p: p.read_bytes() for p in first.path.rglob("*") if p.is_file() and p.name != MANIFEST}
    harm(first.path / "shards" / "1.bin")
    again = build_shards(tmp_path)
    assert again.fresh
    assert again.counts == {"made": [1], "summary": True}
    assert {p: p.read_bytes() for p in whole} == whole
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert f"shards/1.bin {says}" in warning
    assert "2 pieces stay" in warning
    assert not build_shards(tmp_path).fresh


def test_what_is_made_of_pieces_is_made_again_from_them(tmp_path):
    first = build_shards(tmp_path)
    (first.path / "whole" / "sizes").write_text("100 200 3")
    again = build_shards(tmp_path)
    assert again.counts == {"made": [], "summary": True}
    assert (again.path / "whole" / "sizes").read_text() == "100 200 300"


def test_a_damaged_stage_without_pieces_starts_from_nothing_and_is_put_aside(tmp_path, caplog):
    calls = []
    first = make(tmp_path, calls)
    (first.path / "data").write_text("whale")
    assert make(tmp_path, calls).fresh
    assert calls == [[], []]
    assert (first.path.with_suffix(".damaged") / "data").read_text() == "whale"
    assert "data holds other bytes than were written" in caplog.text


@pytest.mark.parametrize("content", ["", '{"stage": "st', "[]", None])
def test_an_unreadable_manifest_is_made_again_from_what_is_there(tmp_path, caplog, content):
    first = build_shards(tmp_path)
    manifest = first.path / MANIFEST
    manifest.unlink() if content is None else manifest.write_text(content)
    with pytest.raises(UserError, match="run the stage again"):
        load(first.path)
    again = build_shards(tmp_path)
    assert again.counts == {"made": [], "summary": False}
    assert [r.levelname for r in caplog.records].count("WARNING") == 1


def test_files_that_were_copied_are_read_once_and_then_trusted(tmp_path, monkeypatch):
    first = build_shards(tmp_path)
    os.utime(first.path / "shards" / "1.bin", ns=(1, 1))
    assert not build_shards(tmp_path).fresh
    monkeypatch.setattr("distill.integrity.file_sha256", pytest.fail)
    assert not build_shards(tmp_path).fresh


def test_artifacts_of_before_files_were_recorded_stay_valid(tmp_path):
    first = make(tmp_path, [])
    manifest = json.loads((first.path / MANIFEST).read_text())
    for name in ("files", "results"):
        del manifest[name]
    (first.path / MANIFEST).write_text(json.dumps(manifest))
    (first.path / "data").write_text("changed by nobody knows whom")
    assert not make(tmp_path, []).fresh


def test_scratch_serves_the_unfinished_stage_only(tmp_path):
    def produce(folder):
        (folder / "resume").mkdir(exist_ok=True)
        (folder / "resume" / "checkpoint").touch()
        return {}

    def once_more():
        return build("train", tmp_path, {}, [], produce, scratch=["resume"])

    assert not (once_more().path / "resume").exists()
    found = once_more()
    assert not found.fresh
    assert list(found.manifest["files"]) == []


def test_version_one_of_results_hashes_as_before_there_was_one(tmp_path, monkeypatch):
    before = fingerprint("train", {"lr": 0.1}, [])
    assert before == "d5c2544dccad7a1e351d85cc803ac30cbfc63c1a352a8db73ccb14daf5557363"
    monkeypatch.setattr("distill.artifacts.RESULTS", 2)
    assert fingerprint("train", {"lr": 0.1}, []) != before


def test_a_stage_made_anew_says_what_differs_from_the_nearest(tmp_path, caplog):
    caplog.set_level("INFO")
    corpus, other = (make(tmp_path, [], {"rows": rows}) for rows in (1, 2))

    def train(settings, source):
        caplog.clear()
        build("train", tmp_path, settings, [source], note([]))
        return [m for m in caplog.messages if "made anew," in m]

    objective = {"divergence": "forward_kl", "temperature": 1}
    assert train({"objective": objective, "seed": 0, "hash": "a" * 64}, corpus) == []
    assert train({"objective": objective, "seed": 0, "hash": "a" * 64}, corpus) == []
    changed = {"objective": objective | {"divergence": "acceptance"}, "seed": 0, "hash": "b" * 64}
    assert train(changed, other) == [
        "train: made anew, because objective.divergence is acceptance (was forward_kl), "
        "hash is another and stage is another"
    ]
    assert train(changed | {"seed": 1, "more": [1]}, other) == [
        "train: made anew, because seed is 1 (was 0) and more is [1] (was not set)"
    ]
    del changed["seed"]
    assert train(changed, other) == ["train: made anew, because seed is gone (was 0)"]


RANKS = """
import os, sys, time
from pathlib import Path
from distill import watch
from distill.artifacts import build
from distill.errors import UserError
from distill.shards import working
watch.GRACE_SECONDS = 1.0
kind, root, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
def wait(path):
    while not path.exists():
        time.sleep(0.02)
def produce(folder):
    with working(folder / "work"):
        (root / f"in-{rank}").touch()
        if rank == 0 and kind != "late":
            wait(root / "in-1")
    if rank == 0 and kind == "raises":
        time.sleep(1.0)
        raise RuntimeError("after training")
    if rank == 0 and kind == "killed":
        time.sleep(2.0)
        os.kill(os.getpid(), 9)
    return {}
if rank == 1 and kind == "late":
    wait(root / "done")
try:
    print(build("stage", root, {}, [], produce, collective=True).path.suffix == "")
except UserError as error:
    sys.exit(str(error))
(root / "done").touch()
"""


def ranks(kind, root):
    """The exit status and the errors of ranks 0 and 1 of one job."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANKS, kind, str(root)],
            env=os.environ | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    errors = [process.communicate(timeout=60)[1] for process in started]
    return [process.returncode for process in started], errors


@pytest.mark.parametrize("kind", ["raises", "killed"])
def test_when_rank_zero_is_gone_the_others_end_with_one_line(tmp_path, kind):
    (_, other), (_, said) = ranks(kind, tmp_path)
    assert other == 1
    assert len(said.splitlines()) == 1
    assert "rank zero failed or was killed" in said


def test_a_late_rank_finds_the_work_done_and_leaves_no_unfinished_folder(tmp_path):
    codes, errors = ranks("late", tmp_path)
    assert codes == [0, 0], errors
    assert [path.suffix for path in (tmp_path / "artifacts" / "stage").iterdir()].count("") == 1
    assert not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / "in-1").exists()


def test_a_note_of_an_earlier_job_ends_nobody(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        build("stage", tmp_path, {"a": 1}, [], lambda folder: {"x": 1 / 0})
    monkeypatch.setattr("distill.watch._STARTED", time.time() + 1)
    watch = Watch(
        "stage", tmp_path / "artifacts" / "stage" / fingerprint("stage", {"a": 1}, [])[:12]
    )
    watch.look()
    monkeypatch.setattr("distill.watch._STARTED", 0.0)
    with pytest.raises(UserError, match="rank zero failed"):
        watch.look()
    make(tmp_path, [])
    watch.look()
