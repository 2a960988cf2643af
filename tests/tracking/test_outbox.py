"""A store that goes away: nobody waits for it, nothing is lost, one warning."""

import json
import time
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from distill.schema import TrackingConfig
from distill.tracking import outbox
from distill.tracking.history import histories
from distill.tracking.outbox import FOLDER, TrackingAwayError
from distill.tracking.registry import register_champion
from distill.tracking.runs import FINGERPRINT, start_job

TRACKING = TrackingConfig(registered_model="draft")
CALLS = ("create_run", "log_batch", "set_tag", "log_text", "log_table", "log_artifact",
         "log_artifacts", "set_terminated", "get_run", "search_runs", "get_metric_history",
         "create_registered_model")  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(outbox, "FIRST_PAUSE", 0.05)


@pytest.fixture
def away(monkeypatch):
    """A switch: while it is on, each call takes a while and fails as with a dead server."""
    state = {"on": False, "tried": 0}

    def through(real):
        def call(self, *args, **kwargs):
            if state["on"]:
                state["tried"] += 1
                time.sleep(0.02)
                raise MlflowException("API request to http://u:SECRET@host failed with exception")
            return real(self, *args, **kwargs)

        return call

    for name in CALLS:
        monkeypatch.setattr(MlflowClient, name, through(getattr(MlflowClient, name)))
    return state


def work(job, folder):
    """Everything that a stage can say."""
    with job.stage("train") as run:
        run.log_tags({FINGERPRINT: "f" * 64})
        for step in range(5):
            run.log_metrics({"loss": float(step), "train/tokens": 10.0 * step}, step)
        run.log_table("sweep", [{"k": 1}, {"k": 2}])
        run.log_text("note.txt", "said")
        run.log_folder(folder, "report")
        run.log_file(folder / "page.html", "evaluation")


def check(client, experiment):
    """All of `work` is there, once."""
    (run,) = client.search_runs([experiment], "tags.`mlflow.runName` = 'train'")
    assert run.info.status == "FINISHED"
    points = client.get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(i, float(i)) for i in range(5)]

    def read(name):
        return Path(client.download_artifacts(run.info.run_id, name)).read_bytes()

    assert read("report/page.html") == read("evaluation/page.html") == b"before"
    assert read("note.txt") == b"said"
    table = pd.read_parquet(client.download_artifacts(run.info.run_id, "tables/sweep.parquet"))
    assert table["k"].tolist() == [1, 2]


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "partial"
    made.mkdir()
    (made / "page.html").write_text("before")
    return made


def test_it_comes_back_before_the_end(root, folder, away, caplog):
    with start_job({}, TRACKING, root, "job") as job:
        away["on"] = True
        work(job, folder)
        (folder / "page.html").unlink()  # renamed into place, and gone from where it was
        away["on"] = False
    client = job.run.client
    check(client, client.get_run(job.run.id).info.experiment_id)
    assert not (root / FOLDER).exists()


def test_it_stays_away_and_the_next_job_sends_what_was_kept(root, folder, away, caplog):
    with start_job({}, TRACKING, root, "first") as job:
        job.run.client  # noqa: B018  # what comes before is sent
        away["on"] = True
        work(job, folder)
        (folder / "page.html").unlink()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert sum("the work goes on" in line for line in warnings) == 1
    assert sum("the next job sends them" in line for line in warnings) == 1
    assert len(warnings) == 2
    assert "SECRET" not in "".join(warnings)
    away["on"] = False
    with start_job({}, TRACKING, root, "second") as second:
        client = second.run.client
        experiment = client.get_run(second.run.id).info.experiment_id
        check(client, experiment)
        states = {r.info.run_name: r.info.status for r in client.search_runs([experiment])}
        assert states == {"first": "FINISHED", "train": "FINISHED", "second": "RUNNING"}
    assert not (root / FOLDER).exists()


def test_another_store_is_not_sent_what_this_one_missed(root, folder, away, empty_database):
    with start_job({}, TRACKING, root, "first") as job:
        away["on"] = True
        work(job, folder)
    away["on"] = False
    other = TrackingConfig(uri=f"sqlite:///{empty_database}", experiment="other")
    with start_job({}, other, root, "second"):
        pass
    assert len(list((root / FOLDER).iterdir())) == 1


def test_nobody_waits_while_it_hangs(root, folder, away, monkeypatch):
    """Each call takes 0.02 s here: what is said must not add up."""
    with start_job({}, TRACKING, root, "job") as job:
        away["on"] = True
        tried = away["tried"]
        for _ in range(100):
            job.run.log_metrics({"a": 1.0})
        assert away["tried"] - tried < 20
        away["on"] = False


def test_what_cannot_be_done_without_it_is_one_line(root, folder, away):
    with start_job({}, TRACKING, root, "job") as job, job.stage("register") as run:
        (folder / "config.json").write_text(json.dumps({}))
        away["on"] = True
        with pytest.raises(TrackingAwayError, match="does not answer") as refused:
            register_champion(folder, TRACKING, {}, run)
        assert "SECRET" not in str(refused.value)
        assert histories(job.run, "f" * 64, ["loss"], "train/tokens") == {}
        away["on"] = False


def test_what_mlflow_refuses_is_named_and_holds_nothing_up(root, caplog):
    with start_job({}, TRACKING, root, "job") as job:
        job.run.log_points([("C++ @k=1", 1.0, 0, 0)])  # as no name of ours is
        job.run.log_metrics({"alpha": 0.5})
    assert job.run.client.get_run(job.run.id).data.metrics == {"alpha": 0.5}
    assert "MLflow refused a record (metrics)" in caplog.text
