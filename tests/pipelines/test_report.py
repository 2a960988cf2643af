"""Reports that jobs leave, drawn again, and laid side by side."""

import json
from pathlib import Path

import mlflow
import pytest

from distill.models.identity import identify
from distill.schema import ModelConfig

from .conftest import write_model

FILES = {"report.html", "summary.json", "evaluation.json", "measurements.parquet"}


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("draft"), layers=1, hidden=32)


@pytest.fixture
def ready(distill, draft):
    def run(folder: Path, *more: str) -> None:
        distill("draft=ready", f"draft.model.id={draft}", f"hydra.run.dir={folder}", *more)

    return run


def refusal(capsys) -> str:
    """The last line: in a process of tests MLflow may say that it makes its database."""
    return capsys.readouterr().err.splitlines()[-1]


def test_a_job_leaves_a_report_that_is_redrawn_and_compared(
    ready, distill, target, draft, tmp_path, capsys
):
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    ready(first, "pipeline=evaluate", "target.serving_name=org/large")
    assert {path.name for path in first.iterdir()} >= FILES
    assert f"report: {first / 'report.html'}" in capsys.readouterr().out
    page = (first / "report.html").read_text()
    assert "pipeline=evaluate" in page
    assert json.loads((first / "summary.json").read_text())["target"] == "org/large"
    assert "a draft for org/large</title>" in page

    # Another draft, and the first one's report from its artifacts, with a certificate by now.
    certificate(tmp_path / "outputs", {"draft": draft, "target": target})
    own = tmp_path / "own"
    own.mkdir()
    ready(again, "pipeline=evaluate", f"--config-dir={own}")
    redrawn = (again / "report.html").read_text()
    assert "certified: by hand" in redrawn
    assert f"python -m distill --config-dir={own} pipeline=evaluate" in redrawn
    distill(
        "pipeline=evaluate", "draft=ready", f"draft.model.id={target}", f"hydra.run.dir={other}"
    )

    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'outputs' / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "distill")
    jobs = client.search_runs([experiment.experiment_id], "attributes.run_name = 'default'")
    logged = {item.path for item in client.list_artifacts(jobs[0].info.run_id, "report")}
    assert logged >= {f"report/{name}" for name in FILES}
    side = tmp_path / "side"
    capsys.readouterr()
    distill(
        "pipeline=compare", f"compare.runs=[{first},{jobs[0].info.run_id}]", f"hydra.run.dir={side}"
    )
    assert "B / A" in capsys.readouterr().out
    (load,) = json.loads((side / "compare.json").read_text())["loads"]
    assert load["turns"] == 3
    assert load["second"]["alpha"]["value"] == pytest.approx(1.0, abs=1e-6)
    assert load["alpha_change"]["value"] > 0
    assert "<svg" in (side / "compare.html").read_text()


def certificate(output: Path, models: dict[str, Path]) -> None:
    """One of this pair, and a newer one of another."""
    pair = {
        role: identify(folder, ModelConfig("folder", str(folder))).sha256
        for role, folder in models.items()
    }
    for name, settings in (("one", pair), ("two", pair | {"draft": "another"})):
        folder = output / "artifacts" / "certify" / name
        folder.mkdir(parents=True)
        manifest = {"stage": "certify", "fingerprint": name, "inputs": {}, "counts": {}}
        manifest |= {"settings": settings}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        words = "by hand" if name == "one" else "another"
        (folder / "certificate.txt").write_text(f"certified: {words}\n")


def test_a_report_of_another_target_is_not_overwritten(ready, tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    summary = {"target": "org/other", "target_weights_sha256": "0"}
    (folder / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(SystemExit) as stopped:
        ready(folder, "pipeline=evaluate")
    assert stopped.value.code == 2
    assert "report of another target (org/other)" in refusal(capsys)


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"{half", b"\xff\xfe"])
def test_a_summary_of_another_program_is_not_overwritten(distill, tmp_path, capsys, content):
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=prepare", f"hydra.run.dir={tmp_path}")
    assert stopped.value.code == 2
    assert "is no summary of a job" in refusal(capsys)
    assert (tmp_path / "summary.json").read_bytes() == content


@pytest.mark.parametrize(
    ("runs", "remedy"),
    [
        ("[]", "give two"),
        ("[a]", "give two"),
        ("[a,b,c]", "give two"),
        ("[a,b]", "holds no evaluation"),
        (f"[{'0' * 32},b]", "MLflow has no run"),
    ],
)
def test_places_that_hold_nothing_to_compare(distill, capsys, tmp_path, runs, remedy):
    with pytest.raises(SystemExit) as stopped:
        distill("pipeline=compare", f"compare.runs={runs}", f"hydra.run.dir={tmp_path / 'side'}")
    assert stopped.value.code == 2
    assert remedy in refusal(capsys)
