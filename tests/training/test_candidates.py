"""Which checkpoints stay: the newest always, of the others the best by the number that is named."""

import json
from pathlib import Path

import pytest

from distill.training.callbacks.candidates import Candidates, candidate_folders
from distill.training.config import MONITORS, TrainerConfig

# tokens: alpha, decoding alpha, predicted speedup: each is best elsewhere
FOUND = {100: (0.9, 0.2, 1.1), 200: (0.5, 0.8, 1.0), 300: (0.1, 0.1, 1.9), 400: (0.0, 0.0, 0.5)}


@pytest.mark.parametrize(("monitor", "best"), list(zip(MONITORS, (100, 200, 300), strict=True)))
def test_the_newest_and_the_best_stay(tmp_path: Path, monitor: str, best: int) -> None:
    callback = Candidates(tmp_path, 4, None, None, keep=2, monitor=monitor)
    for tokens, (alpha, decoded, speedup) in FOUND.items():
        folder = tmp_path / f"tokens-{tokens:09d}"
        folder.mkdir()
        decoding = {"alpha": decoded, "predicted_speedup": speedup}
        metrics = {"tokens": tokens, "alpha": alpha, "decoding": decoding}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        callback._drop_the_worst()
    assert [int(path.name[7:]) for path in candidate_folders(tmp_path)] == [best, 400]


def test_training_keeps_as_many_as_asked(tiny, tmp_path, monkeypatch) -> None:
    for keep, count in ((None, 4), (1, 1), (3, 3)):
        trainer = TrainerConfig(accelerator="cpu", precision="32-true", checkpoints=4, keep=keep)
        result, _, _ = tiny.train(tmp_path / str(keep), monkeypatch, trainer=trainer)
        assert len(result["candidates"]) == count
        newest = json.loads((Path(result["candidates"][-1]) / "metrics.json").read_text())
        assert newest["tokens"] == result["train_tokens"]
