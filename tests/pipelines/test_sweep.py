"""One command, several configurations: what they share is made once, and each of them reports."""

from pathlib import Path


def lines(path: Path) -> list[str]:
    return [line.split("] ", 1)[-1] for line in path.read_text().splitlines()]


def test_sweep_shares_stages_and_every_job_keeps_its_log(distill, tmp_path, prompts):
    distill(
        "pipeline=train", "name=sweep", "draft=svd,scratch",
        "data=jsonl", f"data.source.path={prompts}", "generate.enabled=true",
        "-m",
    )  # fmt: skip
    artifacts = tmp_path / "outputs" / "artifacts"
    assert {
        stage.name: len(list(stage.glob("*/manifest.json"))) for stage in artifacts.iterdir()
    } == {
        "prepare": 1,
        "generate": 1,
        "train": 2,
    }
    first, second = sorted((tmp_path / "outputs" / "sweeps" / "sweep").glob("*/*/distill.log"))
    assert any(line.startswith("prepare: starting") for line in lines(first))
    assert any(line.startswith("prepare: up to date") for line in lines(second))
    assert any(line.startswith("train: starting") for line in lines(second))
