"""Which rows make a micro-batch, and which micro-batches a window (one optimiser step).

Pure arithmetic on row lengths, the same on every rank.
"""

from collections.abc import Iterator, Sequence

import numpy as np

MicroBatch = list[int]
"""Row indices."""
Window = list[MicroBatch]
BUFFER_BATCHES = 32
"""Rows are sorted by length within a shuffled buffer of about so many micro-batches: little padding
and still a new mixture in every epoch."""


def pack(order: Sequence[int], lengths: np.ndarray, tokens_per_batch: int) -> list[MicroBatch]:
    """Consecutive rows as micro-batches with rows × longest row <= tokens_per_batch."""
    batches: list[MicroBatch] = []
    current: MicroBatch = []
    longest = 0
    for row in order:
        longest = max(longest, int(lengths[row]))
        if current and (len(current) + 1) * longest > tokens_per_batch:
            batches.append(current)
            current, longest = [], int(lengths[row])
        current.append(row)
    return [*batches, current] if current else batches


def join(batches: list[MicroBatch], lengths: np.ndarray, tokens_per_step: int) -> list[Window]:
    """Consecutive micro-batches as windows of at most tokens_per_step tokens, at least one each."""
    windows: list[Window] = []
    room = -1
    for batch in batches:
        size = int(lengths[batch].sum())
        if size > room:
            windows.append([])
            room = tokens_per_step
        windows[-1].append(batch)
        room -= size
    return windows


def epoch_windows(
    lengths: np.ndarray, tokens_per_batch: int, tokens_per_step: int, seed: int, epoch: int
) -> list[Window]:
    """Every row once. Deterministic in all arguments."""
    generator = np.random.default_rng((seed, epoch))
    order = generator.permutation(len(lengths))
    limit = min(tokens_per_batch, tokens_per_step)
    rows_per_batch = max(1, int(limit / max(lengths.mean(), 1.0)))
    buffer = rows_per_batch * BUFFER_BATCHES
    batches: list[MicroBatch] = []
    for start in range(0, len(order), buffer):
        part = order[start : start + buffer]
        batches += pack(part[np.argsort(lengths[part], kind="stable")].tolist(), lengths, limit)
    shuffled = [batches[i] for i in generator.permutation(len(batches))]
    return join(shuffled, lengths, tokens_per_step)


def rank_windows(
    lengths: np.ndarray,
    tokens_per_batch: int,
    tokens_per_step: int,
    seed: int,
    *,
    position: int = 0,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Window]:
    """The endless windows of one rank, from optimiser step `position` on.

    The windows of all epochs form one stream and step s takes windows s·world … s·world+world−1,
    so ranks never share a window, never run dry before another, and no row is lost at the end of
    an epoch.
    """
    wanted = position * world + rank
    first, epoch = 0, 0
    while True:
        windows = epoch_windows(lengths, tokens_per_batch, tokens_per_step, seed, epoch)
        while wanted - first < len(windows):
            yield windows[wanted - first]
            wanted += world
        first += len(windows)
        epoch += 1
