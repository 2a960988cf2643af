"""Speculative decoding at shares of the budget: it measures what validation only predicts."""

import copy
import logging
from collections.abc import Sequence
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.utilities.seed import isolate_rng
from transformers import PreTrainedModel

from distill.speculative.decode import Output, decode
from distill.speculative.drafter_for import drafter_for
from distill.speculative.drafters import Drafter
from distill.speculative.prediction import Cost, predicted_speedup
from distill.speculative.stats import Stats
from distill.teacher.live import eagerly
from distill.training.callbacks.base import PeriodicMeasurement
from distill.training.module import DistillModule
from distill.training.sharding import whole_draft

log = logging.getLogger(__name__)


class Decoding(PeriodicMeasurement):
    """Decodes a few fixed prompts, one at a time at temperature 1, with and without the draft.

    Training does not notice: a copy of the draft decodes, in the target's dtype as a server would
    hold it; random states are put back; the clock stands still. Rank 0 decodes and the other ranks
    wait for its numbers in a broadcast, so one decoding must end within the process group's
    timeout (10 minutes with NCCL), which a few prompts of a few dozen tokens do.
    """

    def __init__(
        self,
        target: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        every: float,
        num_draft_tokens: int,
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        vocabulary_size: int,
    ):
        super().__init__(every)
        self._target = target
        self._prompts = prompts
        self._k = num_draft_tokens
        self._max_new_tokens = max_new_tokens
        self._eos_token_ids = eos_token_ids
        self._vocabulary_size = vocabulary_size

    def started(self, trainer: Trainer, module: DistillModule) -> None:
        """Let the engine move the target's weights, once, to where they are read fastest.

        This comes before the first window, so that the teacher's numbers are the same in all.
        """
        if trainer.is_global_zero:
            with module.clock.stopped(), isolate_rng():
                self._decode(self._prompts[0], None, most=2)

    def _measure(self, trainer: Trainer, module: DistillModule) -> dict[str, float]:
        """alpha, tokens_per_pass, cost_ratio, verify_cost and predicted_speedup."""
        with module.clock.stopped():
            draft = whole_draft(module.draft, trainer.strategy)
            found = self._compare(draft) if trainer.is_global_zero else None
            values: dict[str, float] = trainer.strategy.broadcast(found)  # pyright: ignore
        module.log_dict({f"decoding/{k}": v for k, v in values.items()}, batch_size=1)
        log.info(
            "decoding at %d tokens: alpha %.3f, %.2f tokens per pass, predicted %.2f×",
            module.clock.spent.tokens,
            values["alpha"],
            values["tokens_per_pass"],
            values["predicted_speedup"],
        )
        return values

    def _compare(self, draft: PreTrainedModel) -> dict[str, float]:
        served: Any = copy.deepcopy(draft).requires_grad_(False)
        served = served.to(device=self._target.device, dtype=self._target.dtype)
        drafter = drafter_for(served, self._target)
        with isolate_rng(), torch.autocast(self._target.device.type, enabled=False):
            self._decode(self._prompts[0], drafter, most=self._k + 2)  # allocates, captures graphs
            plain, drafted = [], []
            for prompt in self._prompts:  # in turn, so that what slows the machine slows both
                plain.append(self._decode(prompt, None))
                drafted.append(self._decode(prompt, drafter))
        return _numbers(plain, drafted, self._k)

    def _decode(
        self, prompt: Sequence[int], drafter: Drafter | None, most: int | None = None
    ) -> Output:
        with eagerly():
            return decode(
                self._target,
                [prompt],
                drafter=drafter,
                num_draft_tokens=self._k if drafter else 0,
                max_new_tokens=most or self._max_new_tokens,
                eos_token_ids=self._eos_token_ids,
                vocabulary_size=self._vocabulary_size,
            )


def _numbers(plain: list[Output], drafted: list[Output], k: int) -> dict[str, float]:
    """Ratios of sums; costs are in steps of plain decoding, timed in these same calls."""
    stats = Stats([record for output in drafted for record in output.stats.per_prompt])
    cost = Cost.measured([one.timing for one in plain], [one.timing for one in drafted])
    return {
        "alpha": stats.alpha,
        "tokens_per_pass": stats.tokens_per_pass,
        "cost_ratio": cost.c,
        "verify_cost": cost.v,
        "predicted_speedup": predicted_speedup(min(stats.alpha, 1.0), k, cost),
    }
