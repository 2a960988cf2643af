"""Seconds of decoding: when the device has finished, without what is done once for a shape."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_left_out = [0.0]
"""Seconds of this process that were spent inside `left_out`."""


def seconds(device: torch.device) -> float:
    """The time, once the device has done all that was asked of it; for differences only."""
    return _finished(device) - _left_out[0]


@contextmanager
def left_out(device: torch.device) -> Iterator[None]:
    """What is done inside takes no time by `seconds`, such as the capture of a graph."""
    start = _finished(device)
    try:
        yield
    finally:
        _left_out[0] += _finished(device) - start


def _finished(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
