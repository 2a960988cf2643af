"""A job that is killed and begun again leaves what an undisturbed one leaves."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kills import STAGES


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["train", "register"])
def test_a_killed_job_leaves_the_same(stage):
    """`python -m tests.kills` kills in every stage. In a process without other tests' threads."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kills", "1", str(STAGES.index(stage))],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert stage in done.stdout
    assert "1 of 1 identical" in done.stdout
