"""The random state of a run, in types that `torch.load(weights_only=True)` accepts."""

import random
from typing import Any

import numpy as np
import torch
from torch import distributed


def rng_state() -> dict[str, Any]:
    """The state of the generators of Python, NumPy and torch on this rank."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (name, [int(key) for key in keys], position, has_gauss, cached),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_rng_state(state: dict[str, Any]) -> None:
    version, keys, gauss = state["python"]
    random.setstate((version, tuple(keys), gauss))
    np.random.set_state(tuple(state["numpy"]))
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def rng_states() -> list[dict[str, Any]]:
    """Every rank's state, in order of rank. A collective call."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return [rng_state()]
    states: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(states, rng_state())
    return states
