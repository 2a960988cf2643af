"""Validation at shares of the budget: the numbers by which checkpoints are compared."""

import logging
from collections.abc import Iterator

import torch
from lightning import Trainer
from torch import Tensor

from distill.data.datamodule import Batch
from distill.losses.fused import Signal
from distill.losses.tokens import predicting_positions
from distill.training.callbacks.base import PeriodicMeasurement
from distill.training.meter import Meter
from distill.training.module import DistillModule

log = logging.getLogger(__name__)


class Validation(PeriodicMeasurement):
    """KL per token and alpha at temperature 1, pooled over all validation rows and ranks.

    The target's side never changes, so it is computed once and kept: for each supervised token as
    many numbers as the target is wide.
    """

    def __init__(self, every: float):
        super().__init__(every)
        self._work: list[tuple[Batch, Tensor, Signal]] | None = None

    def _measure(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        """kl, alpha and agreement, means per token, and the number of tokens."""
        with module.clock.pause():
            values = self._pool(trainer, module)
        module.log_dict({f"validation/{k}": v for k, v in values.items()}, batch_size=1)
        log.info(
            "validation at %d tokens: alpha %.4f, KL %.4f per token",
            module.clock.spent.tokens,
            values["alpha"],
            values["kl"],
        )
        return values

    def _pool(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        if self._work is None:
            self._work = list(self._prepare(trainer, module))
        meter = Meter()
        module.draft.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            for batch, positions, signal in self._work:
                meter.add(module.held_out_sums(batch, positions, signal))
        module.draft.train()
        means = meter.read(module.device)
        return {"kl": means.pop("divergence")} | means

    def _prepare(
        self, trainer: Trainer, module: DistillModule
    ) -> Iterator[tuple[Batch, Tensor, Signal]]:
        loader = trainer.datamodule.val_dataloader()  # pyright: ignore[reportAttributeAccessIssue]
        for batch in loader:
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            positions = predicting_positions(batch["supervised"])
            yield batch, positions, module.teacher.signal(batch, positions)
