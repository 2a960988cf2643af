"""What cannot be known early does not undo what was measured; what is private stays here."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from distill.serving.transformers import ExportError

DOMAIN = "C++ @k=1, naïve (日本)"


@pytest.fixture
def ready(target: Path, tmp_path: Path) -> list[str]:
    """The whole road of a ready draft on prompts of an odd domain, in a run folder of our own."""
    rows = [
        {"prompt": f"count up to {i}", "domain": (DOMAIN, "[/INST]")[i % 2]} for i in range(400)
    ]
    prompts = tmp_path / "rows.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draft = tmp_path / "draft(v2) [x]"
    draft.symlink_to(target)
    return [
        "draft=ready", f"draft.model.id='{draft}'", "data=jsonl", f"data.source.path={prompts}",
        f"hydra.run.dir={tmp_path}/run",
    ]  # fmt: skip


def uploaded(outputs: Path) -> dict[str, bytes]:
    return {
        path.relative_to(outputs).as_posix(): path.read_bytes()
        for path in (outputs / "mlruns").rglob("*")
        if path.is_file()
    }


def test_secrets_and_private_files_leave_no_trace(distill, ready, tmp_path):
    """And names from data that are no keys of MLflow's end no job."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "private.txt").write_text("PRIVATE")
    distill(
        *ready,
        "data.evaluation_rows=12",
        "evaluate.num_prompts=6",
        "+target.chat_template_kwargs.uri='http://user:SECRET@host/x'",
    )
    sent = uploaded(tmp_path / "outputs")
    assert {Path(name).name for name in sent if "/report/" in name} == {
        "report.html", "summary.json", "evaluation.json", "measurements.parquet",
    }  # fmt: skip
    for bad in (b"SECRET", b"PRIVATE"):
        assert not [name for name, content in sent.items() if bad in content]
        assert bad not in (tmp_path / "outputs" / "mlflow.db").read_bytes()
    page = (tmp_path / "run" / "report.html").read_text()
    assert "SECRET" not in page
    assert DOMAIN in page
    assert "[/INST]" in page
    assert "draft(v2) [x]" in page


@pytest.fixture
def one_ready(ready):
    return [*ready, "evaluate.num_prompts=2", "evaluate.num_draft_tokens=[1]"]


def test_an_export_that_fails_leaves_report_and_summary(
    distill, one_ready, tmp_path, monkeypatch, capsys
):
    def differs(*_args, **_kwargs):
        raise ExportError("the folder does not give the champion's logits")

    monkeypatch.setattr("distill.pipelines.export.export_draft", differs)
    with pytest.raises(SystemExit) as stopped:
        distill(*one_ready)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("distill: the folder does not give")
    assert "Traceback" not in said
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["export_path"] is None
    assert summary["model_uri"].startswith("models:/")
    assert (tmp_path / "run" / "report.html").exists()
    client = MlflowClient(f"sqlite:///{tmp_path}/outputs/mlflow.db")
    assert client.get_registered_model(f"{Path(summary['target']).name}-draft")


def test_a_report_that_cannot_be_drawn_leaves_the_numbers(
    distill, one_ready, tmp_path, monkeypatch, capsys
):
    def fails(_facts):
        raise RuntimeError("no\nfont")

    monkeypatch.setattr("distill.pipelines.report.render_report", fails)
    distill(*one_ready, "pipeline=evaluate")
    assert "the report could not be drawn (no font)" in capsys.readouterr().err
    run = tmp_path / "run"
    assert not (run / "report.html").exists()
    assert json.loads((run / "summary.json").read_text())["verdict"]
    assert (run / "measurements.parquet").exists()
