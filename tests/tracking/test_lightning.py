import warnings

import lightning.pytorch as pl
import pytest
import torch

from distill.schema import TrackingConfig
from distill.tracking.lightning import MetricBuffer, lightning_logger
from distill.tracking.runs import Run, SilentClient, start_job


class Store:
    """A client that counts its calls, and may fail."""

    def __init__(self):
        self.batches = []
        self.error = None

    def log_batch(self, run_id, metrics):
        if self.error is not None:
            raise self.error
        self.batches.append(metrics)


def test_points_wait_for_their_turn_and_none_is_lost():
    now, store = [0.0], Store()
    buffer = MetricBuffer(store, "run", every_seconds=10.0, clock=lambda: now[0])
    for step in range(25):
        now[0] = float(step)
        buffer.add({"loss": float(step)}, step)
    assert [len(batch) for batch in store.batches] == [11, 10]
    buffer.close()
    points = [point for batch in store.batches for point in batch]
    assert [(point.step, point.value) for point in points] == [(i, float(i)) for i in range(25)]


def test_no_call_is_larger_than_mlflow_takes():
    store = Store()
    buffer = MetricBuffer(store, "run", every_seconds=1e9)
    for step in range(2500):
        buffer.add({"loss": 0.0}, step)
    buffer.close()
    assert [len(batch) for batch in store.batches] == [1000, 1000, 500]


def test_a_store_that_fails_does_not_end_training_but_is_not_hidden():
    from mlflow.exceptions import MlflowException

    store = Store()
    store.error = MlflowException("no answer")
    buffer = MetricBuffer(store, "run", every_seconds=0.0)
    with pytest.warns(UserWarning, match="no answer"):
        buffer.add({"loss": 1.0}, 0)
    with pytest.raises(MlflowException):
        buffer.close()
    store.error = None
    buffer.close()
    assert [point.value for point in store.batches[0]] == [1.0]


class Tiny(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        self.log("train/loss", float(index))
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.zeros(12, 2))


def fit(logger, root):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=logger,
            log_every_n_steps=1,
            default_root_dir=root,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Tiny())


def test_lightning_logs_into_the_stage_and_leaves_its_status_alone(root):
    with start_job({}, TrackingConfig(), root, "job") as job:
        with job.stage("train") as run:
            fit(lightning_logger(run), root)
            assert job.run.client.get_run(run.id).info.status == "RUNNING"
            run.log_metrics({"tokens": 3.0})
        history = job.run.client.get_metric_history(run.id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(i, float(i)) for i in range(12)]
    assert job.run.client.get_run(run.id).info.status == "FINISHED"


def test_lightning_on_another_rank_logs_nowhere(tmp_path):
    fit(lightning_logger(Run(SilentClient(), "", "http://127.0.0.1:9")), tmp_path)
