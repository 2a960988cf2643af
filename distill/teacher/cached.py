"""The teacher that was asked before: its answers lie on disk, the target itself is not loaded."""

from pathlib import Path

import torch
from torch import Tensor

from distill.data.corpus import SPLITS
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.shards import Store, load_head
from distill.teacher.signals import TeacherSignal, rows_and_places

LEARNT_SPLITS = ("train", "validation")


class CachedTeacher:
    """Looks signals up by row and position; the trainer cannot tell it from a `LiveTeacher`.

    Validation rows are kept as hidden states whatever the codec, so that the numbers by which
    drafts are compared are always exact.
    """

    def __init__(self, folder: Path, codec: Codec):
        self._head = load_head(folder)
        self._codecs = {"train": codec, "validation": Hidden()}
        self._stores = {split: Store(folder, split, self._codecs[split]) for split in LEARNT_SPLITS}

    @property
    def width(self) -> int:
        return self._head.weight.shape[1]

    def to(self, device: torch.device) -> None:
        self._head = self._head.on(device)

    def signal(self, batch: dict[str, Tensor], positions: Tensor) -> TeacherSignal:
        """Of a batch with `split`, and what `rows_and_places` reads."""
        split = SPLITS[int(batch["split"])]
        rows, places = (x.cpu() for x in rows_and_places(batch, positions))
        with torch.autocast("cpu", enabled=False):  # which would cast what it joins
            columns = self._stores[split].take(rows, places)
        device = positions.device
        return self._codecs[split].signal(
            {name: column.to(device) for name, column in columns.items()}, self._head
        )
