import warnings

import lightning.pytorch as pl
import torch

from distill.schema import TrackingConfig
from distill.tracking.lightning import StageLogger, lightning_logger
from distill.tracking.runs import Run, start_job


class Sink:
    """A run that notes the batches it is handed."""

    def __init__(self):
        self.batches = []

    def log_points(self, points):
        if points:
            self.batches.append(points)


def test_points_wait_for_their_turn_and_none_is_lost():
    now, run = [0.0], Sink()
    logger = StageLogger(run, every_seconds=10.0, clock=lambda: now[0])
    for step in range(25):
        now[0] = float(step)
        logger.log_metrics({"loss": float(step)}, step)
    assert [len(batch) for batch in run.batches] == [11, 10]
    logger.finalize()
    points = [point for batch in run.batches for point in batch]
    assert [(step, value) for _, value, _, step in points] == [(i, float(i)) for i in range(25)]


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


def test_lightning_logs_into_the_stage_and_leaves_its_status_alone(root, monkeypatch):
    with start_job({}, TrackingConfig(), root, "job") as job:
        with job.stage("train") as run:
            with monkeypatch.context() as patch:
                handed = []
                log_points = Run.log_points
                patch.setattr(Run, "log_points", lambda *a: handed.append(1) or log_points(*a))
                fit(lightning_logger(run), root)
            assert len(handed) == 1
            assert job.run.client.get_run(run.id).info.status == "RUNNING"
            run.log_metrics({"tokens": 3.0})
        history = job.run.client.get_metric_history(run.id, "train/loss")
    assert [(point.step, point.value) for point in history] == [(i, float(i)) for i in range(12)]
    assert job.run.client.get_run(run.id).info.status == "FINISHED"


def test_lightning_on_another_rank_logs_nowhere(tmp_path):
    fit(lightning_logger(Run(None, "", "http://127.0.0.1:9")), tmp_path)
