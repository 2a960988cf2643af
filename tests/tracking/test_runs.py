import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from mlflow import MlflowClient

from distill.errors import UserError
from distill.locks import Lock
from distill.schema import TrackingConfig
from distill.tracking import lease
from distill.tracking.client import connect, experiment_id
from distill.tracking.lease import FOLDER
from distill.tracking.runs import flatten, numbers, start_job

CONFIG = {"seed": 1, "draft": {"init": "svd", "sizes": [1, 2], "model": None}, "empty": {}}


def statuses(root, job):
    client = job.run.client
    runs = client.search_runs([client.get_run(job.run.id).info.experiment_id])
    return {run.info.run_name: run.info.status for run in runs}


def artifact(job_run, name) -> Path:
    return Path(job_run.client.download_artifacts(job_run.id, name))


def test_a_job_is_one_parent_with_its_stages_nested(root):
    with start_job(CONFIG, TrackingConfig(), root, "job") as job:
        with job.stage("train") as run:
            run.log_metrics({"alpha": 0.5, "not_a_number": float("nan")})
        assert statuses(root, job) == {"job": "RUNNING", "train": "FINISHED"}
    assert statuses(root, job) == {"job": "FINISHED", "train": "FINISHED"}
    logged = job.run.client.get_run(run.id).data
    assert logged.metrics["alpha"] == 0.5
    assert logged.tags["mlflow.parentRunId"] == job.run.id


def test_the_configuration_is_searchable_and_can_be_run_again(root):
    with start_job(CONFIG, TrackingConfig(), root, "job") as job:
        pass
    params = job.run.client.get_run(job.run.id).data.params
    assert params == {
        "seed": "1",
        "draft.init": "svd",
        "draft.sizes": "[1, 2]",
        "draft.model": "null",
        "empty": "{}",
    }
    assert yaml.safe_load(artifact(job.run, "config.yaml").read_text()) == CONFIG
    environment = json.loads(artifact(job.run, "environment.json").read_text())
    assert environment["versions"]["python"].startswith("3.")


def test_more_parameters_than_one_call_takes(root, monkeypatch):
    """A server refuses more than 100; the local store does not."""
    sizes, log_batch = [], MlflowClient.log_batch

    def recorded(self, run_id, **what):
        sizes.append(len(what["params"]))
        return log_batch(self, run_id, **what)

    monkeypatch.setattr(MlflowClient, "log_batch", recorded)
    with start_job(
        {"many": {f"p{i}": i for i in range(250)}}, TrackingConfig(), root, "job"
    ) as job:
        pass
    assert len(job.run.client.get_run(job.run.id).data.params) == 250
    assert sizes == [100, 100, 50]


def test_artifacts_lie_under_the_output_root(root):
    with start_job(CONFIG, TrackingConfig(), root, "job") as job, job.stage("export") as run:
        folder = root / "made"
        folder.mkdir()
        (folder / "a.txt").write_text("a")
        run.log_folder(folder, "model")
    found = list((root / "mlruns").rglob("a.txt"))
    assert len(found) == 1
    assert found[0].parent.name == "model"


def test_tables_for_programs_and_for_people(root):
    rows = [{"k": 1, "alpha": 0.5, "positions": [1, 2]}, {"k": 2, "alpha": 0.4, "positions": []}]
    with start_job(CONFIG, TrackingConfig(), root, "job") as job, job.stage("evaluate") as run:
        run.log_table("sweep", rows)
    table = pd.read_parquet(artifact(run, "tables/sweep.parquet"))
    assert table["alpha"].tolist() == [0.5, 0.4]
    assert json.loads(artifact(run, "tables/sweep.json").read_text())["columns"] == list(rows[0])


def test_a_stage_that_was_up_to_date_shows_its_recorded_numbers(root):
    with start_job(CONFIG, TrackingConfig(), root, "job") as job, job.stage("train") as run:
        run.log_up_to_date({"tokens": 7, "loss": {"kl": 1.5}, "name": "x", "resumed": True})
    logged = job.run.client.get_run(run.id).data
    assert logged.metrics == {"tokens": 7.0, "loss.kl": 1.5}
    assert logged.tags["distill.up_to_date"] == "true"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RuntimeError(), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(143), "KILLED"),
        (SystemExit(1), "FAILED"),
    ],
)
def test_an_interrupted_job_does_not_stay_running(root, error, status):
    job = start_job(CONFIG, TrackingConfig(), root, "job")
    with pytest.raises(type(error)), job, job.stage("train"):
        raise error
    assert statuses(root, job) == {"job": status, "train": status}
    assert not list((root / FOLDER).iterdir())


KILLED_JOB = """
import os, signal, sys
from pathlib import Path
from distill.schema import TrackingConfig
from distill.tracking.runs import start_job
with start_job({}, TrackingConfig(), Path(sys.argv[1]), "first") as job, job.stage("train"):
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_job_ends_the_runs_of_a_killed_one_and_no_others(root):
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_JOB, str(root)], capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with start_job({}, TrackingConfig(), root, "alive") as alive:
        assert statuses(root, alive) == {"first": "KILLED", "train": "KILLED", "alive": "RUNNING"}
        with start_job({}, TrackingConfig(), root, "other") as other:
            assert statuses(root, other)["alive"] == "RUNNING"
    assert not list((root / FOLDER).iterdir())


def test_a_killed_run_of_another_store_is_left_to_it(root):
    (root / FOLDER).mkdir()
    foreign = root / FOLDER / f"{'0' * 32}.lock"
    foreign.touch()
    with start_job({}, TrackingConfig(), root, "job"):
        pass
    assert foreign.exists()


@pytest.mark.parametrize(
    "environment", [{"LOCAL_RANK": "1"}, {"RANK": "3", "LOCAL_RANK": "0"}, {"NODE_RANK": "1"}]
)
def test_other_ranks_never_touch_the_store(tmp_path, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setitem(os.environ, name, value)
    tracking = TrackingConfig(uri="http://127.0.0.1:9")
    with start_job(CONFIG, tracking, tmp_path, "job") as job, job.stage("train") as run:
        run.log_metrics({"alpha": 0.5})
        run.log_table("t", [{"a": 1}])
        run.log_up_to_date({"a": 1})
    assert run.silent
    assert not list(tmp_path.iterdir())


def test_credentials_are_not_logged(root):
    config = {"tracking": {"uri": "postgresql://user:secret@db/x"}}
    with start_job(config, TrackingConfig(), root, "job") as job:
        pass
    params = job.run.client.get_run(job.run.id).data.params
    assert params["tracking.uri"] == "postgresql://db/x"
    assert "secret" not in artifact(job.run, "config.yaml").read_text()


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "file:///tmp/x", "sqlite:////proc/no/x.db"])
def test_a_store_that_cannot_work_is_refused_at_once(tmp_path, uri):
    with pytest.raises(UserError, match=r"tracking\.uri"):
        start_job(CONFIG, TrackingConfig(uri=uri), tmp_path, "job")


def test_a_deleted_experiment_is_refused_with_the_remedy(root):
    client = connect(TrackingConfig(), root)
    client.delete_experiment(experiment_id(client, TrackingConfig(), root))
    with pytest.raises(UserError, match="restore"):
        start_job(CONFIG, TrackingConfig(), root, "job")


def test_a_moved_output_root_is_refused(root):
    with start_job(CONFIG, TrackingConfig(), root, "job"):
        pass
    moved = root.rename(root.with_name("moved"))
    with pytest.raises(UserError, match="moved"):
        start_job(CONFIG, TrackingConfig(), moved, "job")


def test_flatten_and_numbers():
    assert dict(flatten({"a": {"b": 1, "c": {}}, "d": "x"})) == {"a.b": "1", "a.c": "{}", "d": "x"}
    assert dict(numbers({"a": {"b": 1}, "c": True, "d": "x", "e": None})) == {"a.b": 1.0}


def test_two_jobs_that_make_the_experiment_at_once_both_get_it(root, monkeypatch):
    client, other = connect(TrackingConfig(), root), []
    find = client.get_experiment_by_name

    def missed(name):
        """Not there; and now another job makes it."""
        monkeypatch.setattr(client, "get_experiment_by_name", find)
        other.append(experiment_id(client, TrackingConfig(), root))

    monkeypatch.setattr(client, "get_experiment_by_name", missed)
    assert [experiment_id(client, TrackingConfig(), root)] == other


def test_a_living_job_of_another_machine_is_not_ended(root, monkeypatch):
    """Its file system keeps locks of one machine from another's sight."""
    with start_job({}, TrackingConfig(), root, "there") as there:
        here = root / FOLDER / f"{there.run.id}.lock"

        def unseen(path):
            return Lock(path, os.open(path, os.O_RDWR | os.O_CREAT))

        monkeypatch.setattr(lease, "machine", lambda: "another one")
        monkeypatch.setattr(lease, "try_lock", unseen)
        with start_job({}, TrackingConfig(), root, "other") as other:
            assert statuses(root, other)["there"] == "RUNNING"
        os.utime(here, (1, 1))  # not touched for long: it is over
        with start_job({}, TrackingConfig(), root, "later") as later:
            assert statuses(root, later)["there"] == "KILLED"
