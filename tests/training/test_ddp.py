"""Two gloo processes against one: the same data must give the same gradients."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training import ranks

WORKER = Path(__file__).parent / "ddp_worker.py"
pytestmark = pytest.mark.slow


def read(folder: Path, rank: int = 0) -> dict[str, Any]:
    return torch.load(folder / f"rank{rank}.pt")


@pytest.fixture(scope="module", params=["forward_kl", "acceptance"])
def folders(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("ddp")
    one, two = root / "one", root / "two"
    jobs = [
        ranks.start(WORKER, [str(folder), request.param], folder, world)
        for folder, world in ((one, 1), (two, 2))
    ]
    ranks.wait([process for job in jobs for process in job], [one, two])
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
