"""One command, several configurations: what they share is made once, and each of them reports."""

from pathlib import Path

import pytest
from mlflow import MlflowClient


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


def statuses(outputs: Path) -> list[str]:
    """Of the parent runs, in the order of their beginning."""
    client = MlflowClient(f"sqlite:///{outputs / 'mlflow.db'}")
    found = client.search_runs(
        [client.get_experiment_by_name("distill").experiment_id],  # type: ignore[union-attr]
        order_by=["attributes.start_time"],
    )
    return [run.info.status for run in found if "mlflow.parentRunId" not in run.data.tags]


@pytest.mark.parametrize(
    ("verb", "sweep", "ends"),
    [
        ("prepare", "data.max_length=999,96", ["FAILED", "FINISHED"]),  # refused by the checks
        ("prepare", "seed=-1,0,1", ["FAILED", "FINISHED", "FINISHED"]),  # refused by its type
        ("prepare", "data.source.path=/none,{prompts}", ["FAILED", "FINISHED"]),
        ("prepare", "name=../x,good", ["FAILED", "FINISHED"]),
    ],
)
def test_a_refused_job_ends_no_sweep(distill, tmp_path, prompts, capsys, verb, sweep, ends):
    sweep = sweep.replace("{prompts}", str(prompts))
    data = ("data=jsonl", f"data.source.path={prompts}")
    given = [one for one in data if one.partition("=")[0] != sweep.partition("=")[0]]
    with pytest.raises(SystemExit) as stopped:
        distill(f"pipeline={verb}", *given, sweep, "-m")
    assert stopped.value.code == 2
    assert statuses(tmp_path / "outputs") == ends
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert sum(line.startswith("distill: ") for line in said.splitlines()) == 2


def test_do_not_ship_ends_no_sweep(distill, target, tmp_path):
    """The first job's gate fails, the second one's bar is low enough."""
    ready = ("draft=ready", f"draft.model.id={target}", "pipeline=evaluate", "evaluate.gate=true")
    with pytest.raises(SystemExit) as stopped:
        distill(
            *ready,
            "data.evaluation_rows=8",
            "evaluate.num_prompts=6",
            "evaluate.margin=1000,0.0001",
            "-m",
        )
    assert stopped.value.code == 1
    assert statuses(tmp_path / "outputs") == ["FAILED", "FINISHED"]
