"""Two gloo processes against one: the same data must give the same gradients."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WORKER = Path(__file__).parent / "ddp_worker.py"
pytestmark = pytest.mark.slow


def start(folder: Path, rank: int, world: int, port: int, objective: str) -> subprocess.Popen:
    folder.mkdir(parents=True, exist_ok=True)
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    if world > 1:
        env |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "GROUP_RANK": "0",
            "TORCHELASTIC_RUN_ID": "test",  # how Lightning knows that the processes exist already
        }
    with (folder / f"errors{rank}.txt").open("w") as errors:
        command = [sys.executable, str(WORKER), str(folder), objective]
        return subprocess.Popen(command, env=env, stderr=errors)


def read(folder: Path, rank: int = 0) -> dict[str, Any]:
    return torch.load(folder / f"rank{rank}.pt")


@pytest.fixture(scope="module", params=["plain", "entropy", "hidden_match"])
def folders(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ddp")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    one, two = root / "one", root / "two"
    runs = [(one, 0, 1), (two, 0, 2), (two, 1, 2)]
    workers = [start(*run, port, request.param) for run in runs]
    try:
        codes = [worker.wait(timeout=600) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    errors = [path.read_text() for path in sorted(root.glob("*/errors*.txt"))]
    assert codes == [0, 0, 0], "\n".join(errors)
    return one, two


def test_gradients_equal_those_of_one_process(folders: tuple[Path, Path]) -> None:
    """2 and 10 tokens; then a rank without any; then a window without any, which is no step."""
    one, two = (read(folder)["gradients"] for folder in folders)
    assert len(one) == len(two) == 3
    for ours, expected in zip(two, one, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)


def test_both_ranks_end_with_the_draft_and_counts_of_one_process(
    folders: tuple[Path, Path],
) -> None:
    """A zero gradient in the place of none would count as a step of its Adam."""
    one, two = folders
    first, second, alone = read(two, 0), read(two, 1), read(one)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=1e-5)
    for key in ("train_tokens", "steps"):
        assert first["result"][key] == second["result"][key] == alone["result"][key]


def test_pooled_validation_numbers_are_those_of_one_process(folders: tuple[Path, Path]) -> None:
    metrics = [
        json.loads(Path(read(folder)["result"]["candidates"][0], "metrics.json").read_text())
        for folder in folders
    ]
    for each in metrics:
        del each["decoding"]  # holds times
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-5)


def test_both_ranks_know_what_rank_0_decoded(folders: tuple[Path, Path]) -> None:
    one, two = (
        [json.loads(Path(p, "metrics.json").read_text()) for p in read(f)["result"]["candidates"]]
        for f in folders
    )
    alphas = [[metrics["decoding"]["alpha"] for metrics in each] for each in (one, two)]
    assert alphas[1] == pytest.approx(alphas[0], rel=1e-4)
    assert len(alphas[0]) == 2
