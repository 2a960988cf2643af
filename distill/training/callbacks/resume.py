"""A checkpoint from which the same command goes on, always whole, whatever kills the process."""

import logging
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from torch import distributed

from distill.files import flush, whole_file
from distill.training.callbacks.base import TrainingCallback
from distill.training.module import DistillModule

log = logging.getLogger(__name__)

RESUME = "resume"
"""The folder of the checkpoints, beside the candidates."""
LATEST, PREVIOUS = "latest.ckpt", "previous.ckpt"


class Resume(TrainingCallback):
    """Saves every `every_seconds` of training, at the end, and when asked to stop; then stops.

    It must come after every callback whose state a window changes. A checkpoint also holds every
    rank's random state, so that a run goes on bit for bit.
    """

    def __init__(self, folder: Path, every_seconds: float):
        self._folder = folder
        self._every = every_seconds
        self._saved_at = 0.0
        self._restored: list[dict[str, Any]] | None = None

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """Go on with the random state; remove what a kill left half written."""
        self._saved_at = module.clock.spent.seconds
        if self._restored is not None:
            _set_random_state(self._restored[trainer.global_rank % len(self._restored)])
        if trainer.is_global_zero:
            for path in self._folder.glob(f".{LATEST}.*"):
                path.unlink()

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

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        checkpoint["rng"] = _random_states()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._restored = checkpoint["rng"]


def save_resumable(trainer: Trainer, folder: Path) -> None:
    """Save the trainer's state; the one before stays until the new one is on disk. Collective."""
    latest = folder / LATEST
    if not trainer.is_global_zero:
        trainer.save_checkpoint(latest)  # hands rank 0 its share, and writes nothing
        return
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(latest) as partial:
        trainer.save_checkpoint(partial)
        flush(partial)
        if latest.exists():
            latest.replace(folder / PREVIOUS)


def newest_resumable(folder: Path) -> Path | None:
    """The newest whole checkpoint, or None. A damaged one is passed over, with a warning."""
    for path in (folder / LATEST, folder / PREVIOUS):
        if not path.exists():
            continue
        if _is_whole(path):
            return path
        log.warning("%s is damaged; going on from the checkpoint before it", path)
    return None


def _is_whole(path: Path) -> bool:
    """Whether every file in the archive is as it was written: a kill may cut one short."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except zipfile.BadZipFile:
        return False


def _random_states() -> list[dict[str, Any]]:
    """The random state of every rank, in order of rank. A collective call."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [_random_state()]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, _random_state())
    return states


def _random_state() -> dict[str, Any]:
    """The generators of Python, NumPy and torch on this rank.

    Types are those that `torch.load(weights_only=True)` accepts.
    """
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, [int(key) for key in keys], position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_random_state(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
