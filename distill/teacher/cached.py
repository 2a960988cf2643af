"""The teacher that was asked before: its answers lie on disk, the target itself is not loaded.

B rows, S tokens a row, T supervised tokens of the micro-batch, F·W width of what a head reads.
"""

from pathlib import Path

import torch
from torch import Tensor

from distill.data.corpus import SPLITS
from distill.losses.dense import HiddenSignal, Whole
from distill.losses.fused import Signal
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.features import ReadSignal
from distill.teacher.shards import FEATURES, Store, features_of, index_path, load_head

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
        self._features = {
            split: Store(folder, features_of(split), Hidden())
            for split in LEARNT_SPLITS
            if index_path(folder, features_of(split)).exists()
        }

    def to(self, device: torch.device) -> None:
        self._head = self._head.on(device)

    def signal(self, batch: dict[str, Tensor], positions: Tensor) -> Signal:
        """The batch names its `split`, and its rows as `rows_and_places` reads them."""
        split = SPLITS[int(batch["split"])]
        rows, places = (x.cpu() for x in rows_and_places(batch, positions))
        with torch.autocast("cpu", enabled=False):  # which would cast what it joins
            columns = self._stores[split].take(rows, places)
        columns = {name: column.to(positions.device) for name, column in columns.items()}
        signal = self._codecs[split].signal(columns, self._head)
        if not self._features:
            return signal
        assert isinstance(signal, HiddenSignal), "a head is taught from whole distributions"
        whole = Whole(columns["log_total"], columns["largest"])
        features = self._read(self._features[split], batch).to(positions.device)
        return ReadSignal(signal.hidden, signal.head, features, whole)

    def _read(self, store: Store, batch: dict[str, Tensor]) -> Tensor:
        """The features [B, S, F·W] of a batch; 0 at padding."""
        real = batch["attention_mask"].flatten().nonzero()[:, 0]
        rows, places = (x.cpu() for x in rows_and_places(batch, real))
        found = store.take(rows, places)[FEATURES]
        B, S = batch["attention_mask"].shape
        features = found.new_zeros(B * S, found.shape[-1])
        features[real.cpu()] = found
        return features.view(B, S, -1)


def rows_and_places(batch: dict[str, Tensor], positions: Tensor) -> tuple[Tensor, Tensor]:
    """The corpus row that each flat position [T] lies in, and its place in that row: [T] each."""
    if "rows" in batch:  # several rows in one sequence
        places = batch["position_ids"].flatten()[positions]
        return batch["rows"].flatten()[positions], places
    width = batch["input_ids"].shape[1]
    return batch["row_index"][positions // width], positions % width
