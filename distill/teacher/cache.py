"""Writing the cached signal: the target is asked once, and its shards follow the rows' order.

A run that was killed goes on with the shards that are missing. N tokens of a shard, D the target's
width.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor

from distill.data.batching import pack
from distill.data.datamodule import Rows
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.losses.tokens import predicting_positions
from distill.progress import Progress
from distill.teacher.cached import LEARNT_SPLITS
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.live import LiveTeacher
from distill.teacher.shards import (
    Layout,
    index_path,
    plan_layout,
    save_head,
    shard_path,
    write_shard,
)

log = logging.getLogger(__name__)


def cache_signals(
    teacher: LiveTeacher,
    corpus: datasets.DatasetDict,
    codec: Codec,
    folder: Path,
    *,
    shard_tokens: int,
    tokens_per_batch: int,
    seed: int = 0,
) -> dict[str, Any]:
    """Write head, indices and shards into `folder`; a second call makes what is missing.

    What a shard holds depends on its number alone, so a run that was killed ends the same.

    Returns:
        tokens, bytes_per_token (measured over the training rows), gigabytes, tokens_per_second
        of this call.

    Raises:
        UserError: more bytes than the disk has left.
    """
    layouts = {split: plan_layout(corpus[split], shard_tokens) for split in LEARNT_SPLITS}
    codecs: dict[str, Codec] = {"train": codec, "validation": Hidden()}
    todo = [
        (split, shard)
        for split, layout in layouts.items()
        for shard in range(layout.shards)
        if not shard_path(folder, split, shard).exists()
    ]
    _announce(teacher, layouts, codecs, folder)
    save_head(teacher.head, folder)
    with Progress(
        "caching", sum(_size(layouts[split], shard) for split, shard in todo)
    ) as progress:
        for split, shard in todo:
            hidden = _hidden(
                teacher, corpus[split], layouts[split], shard, tokens_per_batch, progress
            )
            generator = torch.Generator(hidden.device)
            generator.manual_seed(stable_hash(seed, split, shard) % 2**63)
            columns = codecs[split].encode(hidden, teacher.head, generator)
            write_shard(columns, shard_path(folder, split, shard))
    for split, layout in layouts.items():
        layout.save(index_path(folder, split))
    return _counts(layouts["train"], folder) | {"tokens_per_second": progress.tokens_per_second}


def _announce(
    teacher: LiveTeacher, layouts: dict[str, Layout], codecs: dict[str, Codec], folder: Path
) -> None:
    """Say what it will take; refuse what the disk cannot hold."""
    each = {split: codec.bytes_per_token(teacher.head) for split, codec in codecs.items()}
    total = sum(each[split] * layout.tokens for split, layout in layouts.items())
    log.info(
        "signal: at most %d bytes per token, %d training tokens, %.3f GB with validation",
        each["train"],
        layouts["train"].tokens,
        total / 1e9,
    )
    here = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    free = shutil.disk_usage(folder).free
    if total - here > free:
        raise UserError(
            f"the cached signal takes up to {total / 1e9:.1f} GB and {folder} has "
            f"{free / 1e9:.1f} GB left: use signal=top_k, signal=sampled or signal=live, fewer "
            "data.train_rows, or another place with paths.output=/some/folder"
        )


def _size(layout: Layout, shard: int) -> int:
    rows = layout.rows(shard)
    return int(layout.offsets[rows.stop] - layout.offsets[rows.start])


def _hidden(
    teacher: LiveTeacher,
    split: datasets.Dataset,
    layout: Layout,
    shard: int,
    tokens_per_batch: int,
    progress: Progress,
) -> Tensor:
    """The target's states [N, D] at all predicting positions of a shard's rows, in their order."""
    numbers = np.arange(layout.rows(shard).start, layout.rows(shard).stop)
    part = split.select(numbers)
    rows = Rows(part, "train")
    weight = teacher.head.weight
    hidden = weight.new_empty(_size(layout, shard), weight.shape[1])
    offsets = layout.offsets[layout.rows(shard).start :] - layout.offsets[layout.rows(shard).start]
    order = np.argsort(rows.lengths, kind="stable").tolist()
    for chosen in pack(order, rows.lengths, tokens_per_batch):
        batch = {name: value.to(weight.device) for name, value in rows.batch(chosen).items()}
        found = teacher.signal(batch, predicting_positions(batch["supervised"])).hidden
        sizes = batch["supervised"].sum(-1).tolist()
        for row, states in zip(batch["row_index"].tolist(), found.split(sizes), strict=True):
            hidden[offsets[row] : offsets[row + 1]] = states
        progress.advance(len(found), len(found))
    return hidden


def _counts(layout: Layout, folder: Path) -> dict[str, Any]:
    written = sum(
        shard_path(folder, "train", shard).stat().st_size for shard in range(layout.shards)
    )
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return {
        "tokens": layout.tokens,
        "bytes_per_token": round(written / max(layout.tokens, 1), 1),
        "gigabytes": round(size / 1e9, 4),
    }
