"""A job killed without warning goes on where it was and ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


def command(target: Path, output: Path) -> list[str]:
    return [
        sys.executable, "-m", "distill", "pipeline=train", "target=folder", f"target.id={target}",
        f"paths.output={output}", f"paths.cache={output / 'cache'}", "target.dtype=float32",
        "trainer=cpu", "draft.hidden_size=32", "draft.num_hidden_layers=1", "data.train_rows=64",
        "data.validation_rows=4", "data.evaluation_rows=4", "data.max_length=96",
        "data.prompt_tokens=16",
        "trainer.tokens_per_batch=128", "trainer.tokens_per_step=128", "trainer.checkpoints=2",
        "trainer.resume_every_seconds=0.5", "budget.tokens=60000",
    ]  # fmt: skip


def counts(output: Path) -> dict:
    (manifest,) = output.glob("artifacts/train/*/manifest.json")
    return json.loads(manifest.read_text())["counts"]


def start(target: Path, output: Path) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command(target, output), env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_killed_in_training_ends_with_the_same_number_of_tokens(target, tmp_path):
    whole = start(target, tmp_path / "whole")
    assert whole.wait(timeout=300) == 0

    killed = start(target, tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("artifacts/train/*.partial/resume/*")):
        assert killed.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not list((tmp_path / "killed").glob("artifacts/train/*/manifest.json"))

    again = start(target, tmp_path / "killed")
    assert again.wait(timeout=300) == 0
    first, second = counts(tmp_path / "whole"), counts(tmp_path / "killed")
    assert first["train_tokens"] == second["train_tokens"]
    assert first["steps"] == second["steps"]
    names = [[Path(p).name for p in c["candidates"]] for c in (first, second)]
    assert names[0] == names[1]
