"""A checkpoint from which the same command goes on, always whole, whatever kills the process."""

import logging
import os
import shutil
import zipfile
from pathlib import Path

from lightning import Trainer

from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule

log = logging.getLogger(__name__)

RESUME = "resume"
"""The folder of the checkpoints, beside the candidates."""
LATEST, PREVIOUS, PARTIAL = "latest.ckpt", "previous.ckpt", "partial.ckpt"


class Resume(TrainingCallback):
    """Saves every `every_seconds` of training, at the end, and when asked to stop; then stops.

    Must come after every callback whose state a window changes.
    """

    def __init__(self, folder: Path, every_seconds: float):
        self._folder = folder
        self._every = every_seconds
        self._saved_at = 0.0

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        self._saved_at = module.clock.spent.seconds

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        clock = module.clock
        due = clock.spent.seconds - self._saved_at >= self._every
        if due or clock.finished or module.stopping:
            self._saved_at = clock.spent.seconds
            with clock.pause():
                save_resumable(trainer, self._folder)
        if module.stopping and not clock.finished:
            trainer.should_stop = True
            log.info(
                "stopped and saved at %d tokens, %.0f%% of the budget: "
                "run the same command again to go on",
                clock.spent.tokens,
                100 * clock.progress,
            )


def save_resumable(trainer: Trainer, folder: Path) -> None:
    """Save the trainer's state; the one before stays until the new one is on disk. Collective."""
    folder.mkdir(parents=True, exist_ok=True)
    partial, latest = folder / PARTIAL, folder / LATEST
    trainer.save_checkpoint(partial)
    if trainer.is_global_zero:
        _flush(partial)
        if latest.exists():
            latest.replace(folder / PREVIOUS)
        partial.replace(latest)
        _flush(folder)


def newest_resumable(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None. A damaged one is passed over, with a warning."""
    for path in (folder / LATEST, folder / PREVIOUS):
        if not path.exists():
            continue
        if _is_whole(path):
            return path
        log.warning("%s is damaged; going on from the checkpoint before it", path)
    return None


def remove_resumable(folder: Path) -> None:
    """Drop the checkpoints of a training that is whole: each is several times the draft's size."""
    if folder.exists():
        shutil.rmtree(folder)


def _is_whole(path: Path) -> bool:
    """Whether every file in the archive is as it was written: a kill may cut one short."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def _flush(path: Path) -> None:
    """Wait until a file's data, or a folder's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
