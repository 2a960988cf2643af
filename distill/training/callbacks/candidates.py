"""Draft-only checkpoints over the budget: what the evaluation chooses from."""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning import Trainer
from transformers import PreTrainedModel

from distill.files import discard, read_json, whole_folder, write_json
from distill.training.callbacks.base import TrainingCallback
from distill.training.callbacks.decoding import Decoding
from distill.training.callbacks.validation import Validation
from distill.training.module import DistillModule
from distill.training.sharding import whole_draft

log = logging.getLogger(__name__)

METRICS = "metrics.json"
CANDIDATES = "candidates"
"""The folder in a training's artifact that holds its checkpoints."""
SaveDraft = Callable[[PreTrainedModel, Path], None]


class Candidates(TrainingCallback):
    """Writes `<folder>/tokens-000123456/` at `count` even points of the budget, last at its end.

    Each is a loadable draft folder plus metrics.json: tokens; kl, alpha and agreement on the
    validation rows; `decoding` where its decoding is measured. A folder appears under its name only
    when it is complete. keep: how many stay, the newest and the best of the others by `monitor`,
    one of `distill.training.config.MONITORS`; None: all. about: what metrics.json also says.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        validation: Validation,
        save: SaveDraft,
        decoding: Decoding | None = None,
        *,
        keep: int | None = None,
        monitor: str = "alpha",
        about: Mapping[str, Any] | None = None,
    ):
        self._folder = folder
        self._count = count
        self._validation = validation
        self._save = save
        self._decoding = decoding
        self._keep = keep
        self._monitor = monitor
        self._about = dict(about or {})
        self._done = 0

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """Remove what a killed run wrote beyond the point where this one goes on, or half."""
        if not trainer.is_global_zero:
            return
        for path in candidate_folders(self._folder):
            if read_json(path / METRICS)["tokens"] > module.clock.spent.tokens:
                discard(path)
        for path in self._folder.glob(".tokens-*"):
            shutil.rmtree(path)

    def after_window(self, trainer: Trainer, module: DistillModule) -> None:
        due = min(self._count, int(module.clock.progress * self._count))
        if due > self._done:
            self._done = due
            found = self._validation.measure(trainer, module)
            metrics: dict[str, Any] = {name: found[name] for name in ("kl", "alpha", "agreement")}
            if self._decoding is not None:
                metrics["decoding"] = self._decoding.measure(trainer, module)
            with module.clock.pause():
                self._write(trainer, module, metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"done": self._done}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._done = state_dict["done"]

    def _write(self, trainer: Trainer, module: DistillModule, metrics: dict[str, Any]) -> None:
        draft = whole_draft(module.draft, trainer.strategy)
        if not trainer.is_global_zero:
            return
        tokens = module.clock.spent.tokens
        path = self._folder / f"tokens-{tokens:09d}"
        with whole_folder(path) as partial:
            self._save(draft, partial)
            write_json(partial / METRICS, {"tokens": tokens, **metrics, **self._about})
        log.info("candidate: %s", path)
        self._drop_the_worst()

    def _drop_the_worst(self) -> None:
        if self._keep is None:
            return
        *older, _ = candidate_folders(self._folder)
        older.sort(key=lambda path: _score(path, self._monitor))
        for path in older[: len(older) + 1 - self._keep]:
            log.info("candidate dropped, by %s: %s", self._monitor, path)
            discard(path)


def candidate_folders(folder: Path) -> list[Path]:
    """Finished candidates, oldest first."""
    return sorted(path.parent for path in folder.glob(f"tokens-*/{METRICS}"))


def training_of(candidate: Path) -> Path | None:
    """The folder of the training that wrote it; None for one that lies elsewhere."""
    folder = candidate.parent
    return folder.parent if folder.name == CANDIDATES else None


def _score(folder: Path, monitor: str) -> float:
    metrics = read_json(folder / METRICS)
    if monitor == "alpha":
        return metrics["alpha"]
    name = "alpha" if monitor == "decoding_alpha" else "predicted_speedup"
    return metrics["decoding"][name]
