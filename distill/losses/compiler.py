"""torch.compile for losses: whether it helps here, and how it is asked."""

import functools
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

SMALLEST_VOCABULARY = 16_384
"""Below it a whole training's losses take less time than compiling them."""

log = logging.getLogger(__name__)


def worth_compiling(device: torch.device, vocabulary_size: int) -> bool:
    """Whether the loss over so many ids should be compiled: it is large, and that works here."""
    return vocabulary_size >= SMALLEST_VOCABULARY and compiles(device.type)


def compile_over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled for any number of rows of the tensors [R, …] that it is called with.

    Anew for every divergence, temperature, dtype and vocabulary: after 8 of them, by default, torch
    would run the function uncompiled from then on. Of a number of rows that it knows, the compiler
    makes one loop per row only if a row is at most 300 times longer, else one per pass over all.
    """
    compiler = cast(Any, torch)  # untyped upstream
    limits = compiler._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 64)
    of_shape = compiler.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        for tensor in (one for one in args if isinstance(one, torch.Tensor)):
            compiler._dynamo.mark_dynamic(tensor, 0)
        return of_shape(*args)

    return call


@functools.cache
def compiles(device_type: str) -> bool:
    """Whether torch.compile works for this kind of device: tried once on a trivial function.

    On a CPU it needs a C++ compiler, on CUDA Triton; a machine without them runs eagerly.
    """
    compiler = cast(Callable[..., Any], cast(Any, torch).compile)  # untyped upstream
    try:
        compiler(_trivial)(torch.zeros(8, device=device_type))
    except (RuntimeError, OSError) as problem:  # of tracing and compilers; of their cache
        reason = str(problem).splitlines()[0]
        log.info("torch.compile does not work here, the loss runs without: %s", reason)
        return False
    return True


def _trivial(x: Tensor) -> Tensor:
    return x.exp() + 1
