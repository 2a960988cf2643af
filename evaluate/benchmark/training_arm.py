"""One run of this trainer for the training benchmark: `python -m … SIGNAL CACHE FOLDER`."""

import json
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import lightning
import torch

from distill.data.datamodule import Batch, collate
from distill.evaluate.benchmark.training import TrainingJob
from distill.models.draft import load_draft
from distill.models.target import load_target
from distill.process import settle
from distill.schema import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from distill.teacher.cached import CachedTeacher
from distill.teacher.codecs import CODECS
from distill.teacher.live import LiveTeacher
from distill.training.objective import Objective
from distill.training.run import train_draft
from distill.versions import versions


class Windows(lightning.LightningDataModule):
    """The job's rows in order, without end; notes when each step begins."""

    def __init__(self, job: TrainingJob):
        super().__init__()
        self._job = job
        self._rows: list[list[int]] = json.loads(Path(job.rows).read_text())
        self.starts: list[float] = []

    def train_dataloader(self) -> Any:
        return self._windows()

    def _windows(self) -> Iterator[list[Batch]]:
        taken = count()
        while True:
            yield [
                self._batch(
                    [next(taken) % len(self._rows) for _ in range(self._job.rows_per_batch)]
                )
                for _ in range(self._job.batches_per_step)
            ]

    def _batch(self, index: list[int]) -> Batch:
        return collate([{"input_ids": self._rows[n], "prompt_length": 0} for n in index], index)

    def val_dataloader(self) -> Any:
        return [self._batch([0])]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        if self.trainer is not None and self.trainer.training:
            self.starts.append(time.perf_counter())
        return batch


def main(signal: str, cache: str, folder: Path) -> None:
    """Train; leave `run.json` and the candidate in the folder. CACHE is not read when live."""
    job = TrainingJob(**json.loads((folder / "job.json").read_text()))
    windows = Windows(job)
    supervised = len(windows._rows[0]) - 1
    train_draft(
        load_draft(Path(job.draft), dtype=torch.float32, device="cpu"),
        _live(job) if signal == "live" else CachedTeacher(Path(cache), CODECS[signal]()),
        windows,
        Objective(),
        OptimizerConfig(lr=job.learning_rate, betas=list(job.betas), weight_decay=0.0),
        ScheduleConfig(name="constant", warmup=0.0),
        TrainerConfig(
            accelerator="cpu",
            devices="1",
            precision="bf16-mixed" if job.half else "32-true",
            gradient_clip=job.gradient_clip,
            checkpoints=1,
            validate_every=1.0,
            resume_every_seconds=float("inf"),
        ),
        BudgetConfig(tokens=job.all_rows * supervised),
        folder,
        vocabulary_size=job.vocabulary_size,
        target_folder=Path(job.target),
    )
    told = {"starts": windows.starts, "versions": versions()}
    (folder / "run.json").write_text(json.dumps(told))


def _live(job: TrainingJob) -> LiveTeacher:
    dtype = torch.bfloat16 if job.half else torch.float32
    target = load_target(Path(job.target), dtype=dtype, device="cpu")
    return LiveTeacher(target, job.vocabulary_size)


if __name__ == "__main__":
    settle()
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
