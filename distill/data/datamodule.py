"""The corpus as batches for Lightning. B rows of a micro-batch, S tokens of its longest row."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import lightning
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from distill.data.batching import MicroBatch, lay_out, pack, rank_windows
from distill.data.corpus import SPLITS, load_corpus, row_lengths, supervised_counts
from distill.errors import UserError

Batch = dict[str, Tensor]
"""input_ids [B, S]; attention_mask [B, S] of 0 and 1; supervised [B, S] bool, the tokens that are
predicted; row_index [B], the rows of the split; split [], its number in `SPLITS`."""


def collate(rows: list[dict[str, Any]], row_index: list[int], split: str = "train") -> Batch:
    """Pad rows on the right into one micro-batch.

    Masks come from lengths alone: a pad id may well be a real token (EOS).
    """
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    begins = torch.tensor([max(row["prompt_length"], 1) for row in rows])
    input_ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
    for padded, row in zip(input_ids, rows, strict=True):
        padded[: len(row["input_ids"])] = torch.as_tensor(row["input_ids"])
    place = torch.arange(input_ids.shape[1])
    real = place < lengths[:, None]
    return {
        "input_ids": input_ids,
        "attention_mask": real.long(),
        "supervised": real & (place >= begins[:, None]),
        "row_index": torch.tensor(row_index),
        "split": torch.tensor(SPLITS.index(split)),
    }


def collate_packed(
    rows: list[dict[str, Any]], row_index: list[int], split: str, width: int
) -> dict[str, Tensor]:
    """Several rows in a sequence of at most `width` tokens, each a document of its own.

    position_ids [B, S] begin anew with every document, which is how attention is told them apart;
    rows [B, S] is each token's row of the split; padding on the right is position 0 of no row.
    """
    sequences = lay_out([len(row["input_ids"]) for row in rows], width)
    longest = max(sum(len(rows[n]["input_ids"]) for n in held) for held in sequences)
    input_ids, position_ids, owners = torch.zeros(3, len(sequences), longest, dtype=torch.long)
    supervised = torch.zeros(len(sequences), longest, dtype=torch.bool)
    real = torch.zeros(len(sequences), longest, dtype=torch.long)
    for line, held in enumerate(sequences):
        start = 0
        for number in held:
            row = rows[number]
            place = torch.arange(len(row["input_ids"]))
            document = slice(start, start + len(place))
            input_ids[line, document] = torch.as_tensor(row["input_ids"]).long()
            position_ids[line, document] = place
            owners[line, document] = row_index[number]
            supervised[line, document] = place >= max(row["prompt_length"], 1)
            real[line, document] = 1
            start += len(place)
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "rows": owners,
        "attention_mask": real,
        "supervised": supervised,
        "row_index": torch.tensor(row_index),
        "split": torch.tensor(SPLITS.index(split)),
    }


class Rows:
    """The rows of a split that have something to learn, with their lengths, without their text."""

    def __init__(self, split: datasets.Dataset, name: str):
        self.name = name
        self.split = split.with_format("numpy", columns=["input_ids", "prompt_length"])
        supervised = supervised_counts(split)
        self.index = np.flatnonzero(supervised)
        """Position among the rows that can be learnt → row of the split."""
        self.lengths = row_lengths(split)[self.index]
        self.supervised_tokens = int(supervised.sum())

    def batch(self, chosen: MicroBatch, packed_width: int | None = None) -> Batch:
        """Read the chosen rows; packed_width: of sequences that hold several rows each."""
        index = self.index[chosen].tolist()
        part = self.split[index]
        rows = [
            {"input_ids": ids, "prompt_length": int(prompt)}
            for ids, prompt in zip(part["input_ids"], part["prompt_length"], strict=True)
        ]
        if packed_width is not None:
            return collate_packed(rows, index, self.name, packed_width)
        return collate(rows, index, self.name)


class WindowStream(IterableDataset[list[Batch]]):
    """Endless windows of one rank from `position` on."""

    def __init__(self, rows: Rows, position: int, rank: int, world: int, **batching: Any):
        self.rows, self.position, self.rank, self.world = rows, position, rank, world
        self.batching = batching

    def __iter__(self) -> Iterator[list[Batch]]:
        windows = rank_windows(
            self.rows.lengths,
            **self.batching,
            position=self.position,
            rank=self.rank,
            world=self.world,
        )
        for window in windows:
            yield [self.rows.batch(batch, self.batching["packed_width"]) for batch in window]


class CorpusDataModule(lightning.LightningDataModule):
    """Train batches are windows: lists of micro-batches for one optimiser step.

    Deterministic in (seed, position); `position` is the number of windows that training was
    handed, and is what a checkpoint keeps. Rank and world size are those of the trainer. It needs
    `Trainer(use_distributed_sampler=False)`, since ranks are told apart here.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tokens_per_batch: int,
        tokens_per_step: int,
        packing: bool = False,
        seed: int = 0,
    ):
        """packing: several training rows in one sequence, as long as the longest row there is."""
        super().__init__()
        self.packing = packing
        self.folder = folder
        self.tokens_per_batch, self.tokens_per_step = tokens_per_batch, tokens_per_step
        self.seed = seed
        self.position = 0
        self._rows: dict[str, Rows] = {}

    def setup(self, stage: str | None = None) -> None:
        """Open the corpus.

        Raises:
            UserError: a split has nothing to learn, or a row that no micro-batch holds.
        """
        if self._rows:
            return
        corpus = load_corpus(self.folder)
        for split in ("train", "validation"):
            rows = Rows(corpus[split], split)
            self._check(split, rows)
            self._rows[split] = rows

    def _check(self, split: str, rows: Rows) -> None:
        if not len(rows.lengths):
            raise UserError(
                f"No {split} row of {self.folder} has text to learn from: let the target answer "
                "the prompts (generate.enabled=true), or give rows a `text`."
            )
        longest = int(rows.lengths.max())
        limit = min(self.tokens_per_batch, self.tokens_per_step)
        if longest > limit:
            raise UserError(
                f"A {split} row has {longest} tokens, but a micro-batch holds {limit}: raise "
                "trainer.tokens_per_batch and trainer.tokens_per_step, or lower data.max_length "
                "or generate.max_new_tokens."
            )

    @property
    def rank(self) -> int:
        """The trainer's rank, 0 without a trainer."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world(self) -> int:
        """The trainer's number of ranks, 1 without a trainer."""
        return self.trainer.world_size if self.trainer else 1

    @property
    def train_supervised_tokens(self) -> int:
        """Supervised tokens of one epoch, over all ranks."""
        return self._rows["train"].supervised_tokens

    def train_dataloader(self) -> DataLoader[list[Batch]]:
        """The endless windows of this rank from `position` on."""
        stream = WindowStream(
            self._rows["train"],
            self.position,
            self.rank,
            self.world,
            tokens_per_batch=self.tokens_per_batch,
            tokens_per_step=self.tokens_per_step,
            packed_width=int(self._rows["train"].lengths.max()) if self.packing else None,
            seed=self.seed,
        )
        return DataLoader(stream, batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Fixed batches, shortest rows first; each row on one rank only."""
        return DataLoader(self._validation_batches(), batch_size=None, shuffle=False)  # type: ignore[arg-type]

    def _validation_batches(self) -> list[Batch]:
        rows = self._rows["validation"]
        order = np.argsort(rows.lengths, kind="stable").tolist()
        batches = pack(order, rows.lengths, self.tokens_per_batch)
        found = [rows.batch(batch) for batch in batches[self.rank :: self.world]]
        if len(found) < -(-len(batches) // self.world):
            # The other ranks have one more: without a partner their collectives would hang.
            found.append(unsupervised(rows.batch(batches[0])))
        return found

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Called for each batch as it is used; the loader itself runs ahead by a window."""
        if self.trainer is not None and self.trainer.training:
            self.position += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the place in the data."""
        return {"position": self.position, "world": self.world}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """After a change of the number of ranks it goes on at the same row of the stream."""
        self.position = state_dict["position"] * state_dict["world"] // self.world


def unsupervised(batch: Batch) -> Batch:
    """The batch with nothing to predict: it adds no token to a sum."""
    return {**batch, "supervised": torch.zeros_like(batch["supervised"])}
