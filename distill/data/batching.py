"""Which rows make a micro-batch, and which micro-batches make a window (one optimiser step).

All of it is arithmetic on row lengths and gives the same on every rank.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

MicroBatch = list[int]
"""Row indices."""
Window = list[MicroBatch]
BUFFER_BATCHES = 32
"""Rows are sorted by length within a shuffled buffer of about so many micro-batches: little padding
and still a new mixture in every epoch."""


def pack(order: Sequence[int], lengths: np.ndarray, tokens_per_batch: int) -> list[MicroBatch]:
    """Cut consecutive rows into micro-batches with rows × longest row <= tokens_per_batch."""
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


def fill(rows: Sequence[int], lengths: np.ndarray, width: int) -> list[list[int]]:
    """Put rows into sequences of at most `width` tokens (first fit, the longest row first).

    No row may be longer than `width`.
    """
    sequences: list[list[int]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda row: -int(lengths[row])):
        length = int(lengths[row])
        place = next((n for n, left in enumerate(room) if left >= length), len(room))
        if place == len(room):
            sequences.append([])
            room.append(width)
        sequences[place].append(row)
        room[place] -= length
    return sequences


def lay_out(sizes: Sequence[int], width: int) -> list[list[int]]:
    """Cut 0, 1, … len(sizes) - 1 into groups whose sizes sum to at most `width`, in order.

    An item wider than that is a group of its own. No layout that keeps the order needs fewer
    groups, so rows that `fill` put into n sequences, one after the other, take at most n here.
    """
    groups: list[list[int]] = []
    room = -1
    for number, size in enumerate(sizes):
        if size > room:
            groups.append([])
            room = width
        groups[-1].append(number)
        room -= size
    return groups


def join(batches: list[MicroBatch], lengths: np.ndarray, tokens_per_step: int) -> list[Window]:
    """Join consecutive micro-batches into windows of at most tokens_per_step tokens.

    A window has at least one micro-batch.
    """
    sizes = [int(lengths[batch].sum()) for batch in batches]
    return [[batches[n] for n in held] for held in lay_out(sizes, tokens_per_step)]


def epoch_windows(
    lengths: np.ndarray,
    tokens_per_batch: int,
    tokens_per_step: int,
    seed: int,
    epoch: int,
    packed_width: int | None = None,
) -> list[Window]:
    """The windows of an epoch, which hold every row once; the same for the same arguments.

    packed_width: of sequences that hold several rows each; None: one row a sequence.
    """
    generator = np.random.default_rng((seed, epoch))
    order = generator.permutation(len(lengths))
    limit = min(tokens_per_batch, tokens_per_step)
    rows_per_batch = max(1, int(limit / max(lengths.mean(), 1.0)))
    buffer = rows_per_batch * BUFFER_BATCHES
    batches: list[MicroBatch] = []
    for start in range(0, len(order), buffer):
        part = order[start : start + buffer]
        if packed_width is None:
            ordered = part[np.argsort(lengths[part], kind="stable")].tolist()
            batches += pack(ordered, lengths, limit)
        else:
            sequences = fill(part.tolist(), lengths, packed_width)
            each = max(1, limit // packed_width)
            mixed = [sequences[i] for i in generator.permutation(len(sequences))]
            batches += [
                list(chain.from_iterable(mixed[n : n + each])) for n in range(0, len(mixed), each)
            ]
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
    packed_width: int | None = None,
) -> Iterator[Window]:
    """The endless windows of one rank, from optimiser step `position` on.

    The windows of all epochs form one stream and step s takes windows s·world … s·world+world−1,
    so ranks never share a window, never run dry before another, and no row is lost at the end of
    an epoch.
    """
    wanted = position * world + rank
    first, epoch = 0, 0
    while True:
        windows = epoch_windows(
            lengths, tokens_per_batch, tokens_per_step, seed, epoch, packed_width
        )
        while wanted - first < len(windows):
            yield windows[wanted - first]
            wanted += world
        first += len(windows)
        epoch += 1
