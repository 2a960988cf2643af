"""The target itself as teacher: its forward pass runs beside the draft's."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.losses.dense import HiddenSignal
from distill.losses.head import Head
from distill.teacher.blocks import compile_blocks
from distill.teacher.head import check_head, head_of
from distill.teacher.hidden import last_hidden


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
    ):
        """compiled: the target's blocks, where that pays (`compile_blocks`)."""
        check_head(target)
        self._target = target.eval().requires_grad_(False)
        self._vocabulary_size = vocabulary_size or head_of(target).weight.shape[0]
        if compiled:
            compile_blocks(target, self._vocabulary_size)
        self._head = head_of(target).sliced(self._vocabulary_size)

    @property
    def head(self) -> Head:
        return self._head

    @property
    def width(self) -> int:
        return self._head.weight.shape[1]

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
        with torch.autocast(device.type, enabled=False):
            hidden = last_hidden(self._target, batch)
        hidden = hidden.flatten(0, 1).to(device)
        return HiddenSignal(hidden.index_select(0, positions), self._head)
