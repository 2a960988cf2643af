"""The files of a cached signal: one index and numbered shards per split.

R rows of a split; a row's tokens are its predicting positions, which are consecutive.
"""

from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from distill.data.corpus import supervised_counts
from distill.errors import UserError
from distill.files import whole_file
from distill.losses.head import Head
from distill.teacher.codecs import Codec, Columns, join

HEAD = "head.safetensors"
FEATURES = "features"
"""The column of what a head reads, and the last part of the name of its stores."""
PIECES = ("*-?????.safetensors",)
"""The shards, which are made one by one: what is left of them after damage serves again."""


@dataclass(frozen=True)
class Layout:
    """Where in the split's stream of tokens a row lies, and which shard holds what.

    first [R]: a row's first predicting position. offsets [R + 1]: tokens of the rows before it.
    cuts: rows at which shards begin, and R.
    """

    first: Tensor
    offsets: Tensor
    cuts: Tensor

    @property
    def shards(self) -> int:
        return len(self.cuts) - 1

    @property
    def tokens(self) -> int:
        return int(self.offsets[-1])

    def rows(self, shard: int) -> range:
        return range(int(self.cuts[shard]), int(self.cuts[shard + 1]))

    def save(self, path: Path) -> None:
        _write({"first": self.first, "offsets": self.offsets, "cuts": self.cuts}, path)

    def of_whole_rows(self, lengths: np.ndarray) -> "Layout":
        """The same rows in the same shards, but with all `lengths` [R] tokens of each."""
        offsets = np.concatenate([[0], lengths.cumsum()])
        return Layout(torch.zeros_like(self.first), torch.from_numpy(offsets), self.cuts)


def plan_layout(split: datasets.Dataset, shard_tokens: int) -> Layout:
    """Shards of whole rows, each of at most shard_tokens tokens or of one row."""
    counts = supervised_counts(split)
    first = np.maximum(np.asarray(split["prompt_length"], dtype=np.int64), 1) - 1
    cuts, room = [0], shard_tokens
    for row, count in enumerate(counts.tolist()):
        if count > room and row > cuts[-1]:
            cuts.append(row)
            room = shard_tokens
        room -= count
    offsets = np.concatenate([[0], counts.cumsum()])
    return Layout(
        torch.from_numpy(first), torch.from_numpy(offsets), torch.tensor([*cuts, len(counts)])
    )


def shard_path(folder: Path, split: str, shard: int) -> Path:
    return folder / f"{split}-{shard:05d}.safetensors"


def index_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.safetensors"


def features_of(split: str) -> str:
    """The store of the states that a head reads at all positions of the split's rows."""
    return f"{split}-{FEATURES}"


def write_shard(columns: Columns, path: Path) -> None:
    _write({name: column.contiguous().cpu() for name, column in columns.items()}, path)


def save_head(head: Head, folder: Path) -> None:
    """The target's head: with it, training needs nothing else of the target."""
    tensors = {"weight": head.weight.contiguous().cpu()}
    if head.bias is not None:
        tensors["bias"] = head.bias.contiguous().cpu()
    cap = 0.0 if head.softcap is None else head.softcap
    _write(
        tensors | {"scale": torch.tensor(head.scale), "softcap": torch.tensor(cap)}, folder / HEAD
    )


def load_head(folder: Path) -> Head:
    saved = load_file(folder / HEAD)
    cap = saved["softcap"].item()
    return Head(saved["weight"], saved.get("bias"), saved["scale"].item(), cap or None)


class Store:
    """Reads a split's tokens. Shards are memory-mapped: only what is asked for is read."""

    def __init__(self, folder: Path, split: str, codec: Codec):
        if not index_path(folder, split).exists():
            raise UserError(f"{folder} holds no cached signal: run pipeline=cache again")
        self._layout = Layout(**load_file(index_path(folder, split)))
        self._begins = self._layout.offsets[self._layout.cuts]
        shards = range(self._layout.shards)
        self._shards = [load_file(shard_path(folder, split, n)) for n in shards]
        self._codec = codec

    def take(self, rows: Tensor, places: Tensor) -> Columns:
        """Columns of the tokens predicted from these places [T] of these rows [T]."""
        token = self._layout.offsets[rows] + places - self._layout.first[rows]
        shard = torch.bucketize(token, self._begins, right=True) - 1
        order = shard.argsort(stable=True)
        parts = []
        for number in shard.unique().tolist() or [0]:  # no token: empty columns, not none
            local = token[order][shard[order] == number] - self._begins[number]
            parts.append(self._codec.take(self._shards[number], local))
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        return {name: column[back] for name, column in join(parts).items()}


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    """Whole or not at all."""
    with whole_file(path) as partial:
        save_file(tensors, partial)
