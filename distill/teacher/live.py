"""The target itself as teacher: its forward pass runs beside the draft's, in compiled blocks."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.losses.dense import HiddenSignal
from distill.losses.head import Head
from distill.losses.kernels import worth_compiling
from distill.teacher.features import FEATURE_DTYPE, ReadSignal, reading
from distill.teacher.head import check_head, head_of, last_hidden

log = logging.getLogger(__name__)


class LiveTeacher:
    """Runs the target's inner model at the supervised positions; the loss applies its head.

    Deliberately no `nn.Module`: held by a LightningModule it must never turn up among its
    parameters, in its optimizer, its checkpoints or its train()/eval() switches.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        vocabulary_size: int | None = None,
        *,
        compiled: bool = False,
        reads: Sequence[int] = (),
    ):
        """compiled: the target's blocks, where that pays (`compile_blocks`).

        reads: the layers after which a head reads the target; its signal is then a `ReadSignal`.
        """
        check_head(target)
        self.reads = tuple(reads)
        self._target = target.eval().requires_grad_(False)
        self._vocabulary_size = vocabulary_size or head_of(target).weight.shape[0]
        if compiled:
            compile_blocks(target, self._vocabulary_size)
        self._head = head_of(target).sliced(self._vocabulary_size)

    @property
    def head(self) -> Head:
        return self._head

    def to(self, device: torch.device) -> None:
        """Move the target unless it is spread over several devices; the head always follows."""
        if len(set(getattr(self._target, "hf_device_map", {}).values())) <= 1:
            self._target.to(device)  # pyright: ignore[reportArgumentType]
        self._head = head_of(self._target).sliced(self._vocabulary_size).on(device)

    @torch.no_grad()
    def signal(self, batch: dict[str, Tensor], positions: Tensor) -> HiddenSignal:
        device = positions.device
        # The target keeps its own dtype; the trainer's autocast would cast its weights anew on
        # every pass.
        with torch.autocast(device.type, enabled=False), reading(self._target, self.reads) as read:
            hidden = last_hidden(self._target, batch)
        chosen = hidden.flatten(0, 1).to(device).index_select(0, positions)
        if not self.reads:
            return HiddenSignal(chosen, self._head)
        features = torch.cat([read[n].to(device, FEATURE_DTYPE) for n in self.reads], -1)
        return ReadSignal(chosen, self._head, features)


def compile_blocks(model: PreTrainedModel, vocabulary_size: int) -> None:
    """Compile a frozen model's decoder blocks, where that is known to pay: one graph serves all.

    It is known to pay on a CPU, where each eager norm, rotation and activation reads and writes
    memory once. A block is what transformers says must stay in one piece on one device. Only
    forward passes over whole rows gain: whoever decodes with the same model does so `eagerly`.
    """
    if model.device.type != "cpu" or not worth_compiling(model.device, vocabulary_size):
        return
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.base_model.modules():
        if type(module).__name__ in names:
            module.compile(dynamic=True)  # batches have many shapes
    log.info(
        "the target's blocks are compiled in their first batches: a minute or two where that is new"
    )


def eagerly() -> AbstractContextManager[Any]:
    """Inside this context, compiled modules run as they were written.

    Decoding needs that: a cache that grows would be traced anew, step after step.
    """
    stance = cast(Any, torch.compiler).set_stance  # untyped upstream
    return stance("force_eager")
