"""Validation at shares of the budget: the numbers by which checkpoints are compared."""

import logging
from typing import Any

import torch
from lightning import Trainer

from distill.losses.tokens import predicting_positions
from distill.training.callbacks.measuring import Measuring
from distill.training.meter import Meter
from distill.training.module import DistillModule

log = logging.getLogger(__name__)


class HeldOut(Measuring):
    """KL per token and alpha at temperature 1, pooled over all validation rows and ranks.

    The target's side of it never changes, so it is computed once and kept: rows · tokens · width of
    the target.
    """

    def __init__(self, every: float):
        super().__init__(every)
        self._work: list[tuple[Any, ...]] | None = None

    def _measure(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        """kl, alpha, agreement: means per token; tokens: how many."""
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
        with (
            torch.no_grad(),
            module.served_weights(),
            trainer.precision_plugin.val_step_context(),
        ):
            for batch, positions, signal in self._work:
                meter.add(module.held_out_sums(batch, positions, signal))
        module.draft.train()
        means = meter.read(module.device)
        return {"kl": means.pop("divergence")} | means

    def _prepare(self, trainer: Trainer, module: DistillModule) -> Any:
        loader = trainer.datamodule.val_dataloader()  # pyright: ignore[reportAttributeAccessIssue]
        for batch in loader:
            batch = module.transfer_batch_to_device(batch, module.device, 0)
            positions = predicting_positions(batch["supervised"])
            yield batch, positions, module.teacher.signal(batch, positions)
