"""A full disk, a place that cannot be written, SIGTERM, damaged files: one line, and it goes on."""

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from distill.errors import UserError
from distill.pipelines import prepare
from distill.pipelines.faults import ended_by_sigterm, in_one_line

from .conftest import write_model


def full_disk():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/file")


def full_disk_below_another_error():
    try:
        full_disk()
    except OSError as error:
        raise RuntimeError("cannot save") from error


def full_disk_of_safetensors():
    raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def unwritable():
    Path("/proc/version/folder").mkdir()


def dangling():
    Path("/no/such/file").read_text()


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (full_disk, "the disk is full"),
        (full_disk_below_another_error, "the disk is full"),
        (full_disk_of_safetensors, "the disk is full"),
        (unwritable, "cannot use /proc/version/folder"),
        (dangling, "cannot use /no/such/file"),
    ],
)
def test_what_a_machine_does_is_one_line(fail, says):
    with pytest.raises(UserError) as told, in_one_line():
        fail()
    assert says in str(told.value)
    assert "paths.output=" in str(told.value)
    assert len(str(told.value).splitlines()) == 1


def test_a_lost_rank_ends_the_others_with_one_line(monkeypatch):
    def lost():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:544] Connection closed by peer")

    with pytest.raises(RuntimeError), in_one_line():
        lost()
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UserError, match="another rank ended"), in_one_line():
        lost()


def test_a_mistake_of_the_code_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), in_one_line():
        _ = 1 / 0


def test_sigterm_leaves_in_order_and_a_second_one_does_not_disturb():
    def told_twice():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as left, ended_by_sigterm():
        told_twice()
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_sigterm_in_a_stage_ends_its_runs(distill, tmp_path, monkeypatch):
    import mlflow

    def stopped(*_args, **_kwargs):
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(prepare, "build_corpus", stopped)
        with pytest.raises(SystemExit) as left:
            distill("pipeline=prepare")
    assert left.value.code == 143
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "distill"]
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} == {"KILLED"}
    assert not list((tmp_path / "outputs" / "running").iterdir())
    distill("pipeline=prepare")


def refused(distill, capsys, *arguments) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        distill(*arguments)
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "Traceback" not in printed
    return printed.splitlines()[-1]


@pytest.mark.parametrize("place", ["paths.output", "paths.cache"])
def test_a_place_that_cannot_be_written(distill, capsys, tmp_path, place):
    (tmp_path / "file").touch()
    said = refused(distill, capsys, "pipeline=prepare", f"{place}={tmp_path / 'file' / 'in'}")
    assert place in said


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGE = [
    ("model.safetensors", cut),
    ("model.safetensors", dangle),
    ("tokenizer.json", cut),
    ("tokenizer.json", dangle),
    ("config.json", cut),
    ("config.json", lambda path: path.write_text("[]")),
    ("tokenizer_config.json", cut),
    ("generation_config.json", cut),
]


@pytest.mark.parametrize(("name", "harm"), DAMAGE)
def test_a_damaged_target_is_named(distill, capsys, target, tmp_path, name, harm):
    folder = tmp_path / "target"
    shutil.copytree(target, folder)
    harm(folder / name)
    said = refused(distill, capsys, "pipeline=prepare", f"target.id={folder}")
    assert str(folder / name) in said


def not_a_number(path: Path) -> None:
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] = torch.nan
    save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "harm"), [*DAMAGE[:5], ("model.safetensors", not_a_number), ("metrics.json", cut)]
)
def test_a_damaged_candidate_is_named_and_the_others_go_on(distill, capsys, tmp_path, name, harm):
    good, bad = (write_model(tmp_path / one, layers=1, hidden=32) for one in ("good", "bad"))
    (bad / "metrics.json").write_text(json.dumps({"tokens": 3, "kl": 1.0}))
    harm(bad / name)
    named = f"evaluate.candidates=[{bad},{good}]"
    capsys.readouterr()
    distill("pipeline=evaluate", named)
    printed = "".join(capsys.readouterr())
    (said,) = {line.partition("] ")[2] for line in printed.splitlines() if "left out:" in line}
    assert str(bad) in said
    (judged,) = (tmp_path / "outputs" / "artifacts" / "judge").glob("*/evaluation.json")
    assert json.loads(judged.read_text())["draft"] == "good"
    only = refused(distill, capsys, "pipeline=evaluate", f"evaluate.candidates=[{bad}]")
    assert str(bad) in only


def test_a_parquet_file_cut_short_is_named(distill, capsys, prompts, tmp_path):
    """A measurement of an unfinished stage: found again after a kill, and not whole."""
    from distill.evaluate.records import read_rows

    distill("pipeline=evaluate")
    (path,) = (tmp_path / "outputs" / "artifacts" / "measure").glob("*/measurements.parquet")
    cut(path)
    with pytest.raises(UserError, match=r"measurements\.parquet is damaged"):
        read_rows(path)


def mount(folder: Path, how: str) -> None:
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", how, "tmpfs", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("no small disk: tmpfs cannot be mounted here")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount(folder, "size=40m")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["prepare", "train", "register", "export"])
def test_a_disk_that_fills_up_in_a_stage(distill, capsys, small_disk, stage):
    before = {"prepare": None, "train": "prepare", "register": "evaluate", "export": "evaluate"}
    where = f"paths.output={small_disk / 'out'}"
    if before[stage]:
        distill(where, f"pipeline={before[stage]}")
    (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - 40_000))
    said = refused(distill, capsys, where, f"pipeline={stage}")
    assert "No space left" in said or "disk is full" in said
    (small_disk / "filler").unlink()
    distill(where, f"pipeline={stage}")
    assert not list((small_disk / "out" / "running").iterdir())
