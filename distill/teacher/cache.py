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
from distill.data.corpus import row_lengths
from distill.data.datamodule import Rows
from distill.data.sources.splits import stable_hash
from distill.errors import UserError
from distill.losses.reduced import summarise
from distill.losses.tokens import predicting_positions
from distill.progress import Progress
from distill.teacher.cached import LEARNT_SPLITS
from distill.teacher.codecs import Codec, Hidden
from distill.teacher.features import FEATURE_DTYPE, ReadSignal
from distill.teacher.live import LiveTeacher
from distill.teacher.shards import (
    FEATURES,
    Layout,
    features_of,
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

    A teacher whose signal a head reads (`LiveTeacher.reads`) also leaves the features of every
    position of a row, and the totals that a reduced vocabulary needs.

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
    _announce(teacher, corpus, layouts, codecs, folder)
    save_head(teacher.head, folder)
    size = sum(_size(layouts[split], shard) for split, shard in todo)
    with Progress("caching", size, first="the first batch") as progress:
        for split, shard in todo:
            hidden, features = _states(
                teacher, corpus[split], layouts[split], shard, tokens_per_batch, progress
            )
            generator = torch.Generator(hidden.device)
            generator.manual_seed(stable_hash(seed, split, shard) % 2**63)
            columns = codecs[split].encode(hidden, teacher.head, generator)
            if features is not None:
                columns |= summarise(hidden, teacher.head)._asdict()
                write_shard({FEATURES: features}, shard_path(folder, features_of(split), shard))
            # Last: where a split's shard is, that of its features is.
            write_shard(columns, shard_path(folder, split, shard))
    for split, layout in layouts.items():
        layout.save(index_path(folder, split))
        if teacher.reads:
            whole = layout.of_whole_rows(row_lengths(corpus[split]))
            whole.save(index_path(folder, features_of(split)))
    return _counts(layouts["train"], folder) | {"tokens_per_second": progress.tokens_per_second}


def _announce(
    teacher: LiveTeacher,
    corpus: datasets.DatasetDict,
    layouts: dict[str, Layout],
    codecs: dict[str, Codec],
    folder: Path,
) -> None:
    """Say what it will take; refuse what the disk cannot hold."""
    each = {split: codec.bytes_per_token(teacher.head) for split, codec in codecs.items()}
    total = sum(each[split] * layout.tokens for split, layout in layouts.items())
    if teacher.reads:
        wide = len(teacher.reads) * teacher.head.weight.shape[1] * FEATURE_DTYPE.itemsize
        total += sum(wide * int(row_lengths(corpus[split]).sum()) for split in layouts)
        log.info("features: %d bytes for every token of a row, the prompt's too", wide)
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


def _states(
    teacher: LiveTeacher,
    split: datasets.Dataset,
    layout: Layout,
    shard: int,
    tokens_per_batch: int,
    progress: Progress,
) -> tuple[Tensor, Tensor | None]:
    """The target's states [N, D] at all predicting positions of a shard's rows, in their order.

    Beside them the features of all M tokens of these rows [M, F·D], where the teacher gives any.
    """
    numbers = np.arange(layout.rows(shard).start, layout.rows(shard).stop)
    part = split.select(numbers)
    rows = Rows(part, "train")
    begins = np.concatenate([[0], row_lengths(part).cumsum()])
    weight = teacher.head.weight
    D = weight.shape[1]
    hidden = weight.new_empty(_size(layout, shard), D)
    width = len(teacher.reads) * D
    # A row without a token to learn is read by nobody: its features stay zero.
    features = weight.new_zeros(begins[-1], width, dtype=FEATURE_DTYPE) if width else None
    offsets = layout.offsets[layout.rows(shard).start :] - layout.offsets[layout.rows(shard).start]
    order = np.argsort(rows.lengths, kind="stable").tolist()
    for chosen in pack(order, rows.lengths, tokens_per_batch):
        batch = {name: value.to(weight.device) for name, value in rows.batch(chosen).items()}
        found = teacher.signal(batch, predicting_positions(batch["supervised"]))
        sizes = batch["supervised"].sum(-1).tolist()
        numbers = batch["row_index"].tolist()
        for row, states in zip(numbers, found.hidden.split(sizes), strict=True):
            hidden[offsets[row] : offsets[row + 1]] = states
        if features is not None:
            assert isinstance(found, ReadSignal)
            for row, states in zip(numbers, found.features, strict=True):
                features[begins[row] : begins[row + 1]] = states[: begins[row + 1] - begins[row]]
        progress.advance(len(found.hidden), len(found.hidden))
    return hidden, features


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
