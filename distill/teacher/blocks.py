"""A frozen model's repeated blocks, compiled: one small graph serves them all."""

from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from distill.losses.kernels import worth_compiling


def compile_blocks(model: PreTrainedModel, vocabulary_size: int) -> None:
    """torch.compile the decoder blocks where that is known to pay.

    Known on a CPU, whose eager norms, rotations and activations read and write memory once each.
    A block is what transformers says must stay in one piece on one device. Only forward passes
    over whole rows gain: whoever decodes with the same model does so `eagerly`.
    """
    if model.device.type != "cpu" or not worth_compiling(model.device, vocabulary_size):
        return
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.base_model.modules():
        if type(module).__name__ in names:
            module.compile(dynamic=True)  # batches have many shapes


def eagerly() -> AbstractContextManager[Any]:
    """Inside, compiled modules run as they were written.

    Decoding needs that: a cache that grows would be traced anew, step after step.
    """
    stance = cast(Any, torch.compiler).set_stance  # untyped upstream
    return stance("force_eager")
