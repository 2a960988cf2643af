"""One optimiser step of distillation as a LightningModule.

A *window* is the list of micro-batches of one step on this rank; see `distill.data.datamodule`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.parallel import ParallelStrategy
from torch import Tensor, distributed
from torch.optim import Optimizer
from transformers import PreTrainedModel

from distill.data.datamodule import Batch
from distill.losses.fused import Signal
from distill.losses.tokens import gradient_scale, predicting_positions
from distill.process import return_freed_memory
from distill.teacher import Teacher
from distill.training.clock import Clock
from distill.training.config import OptimizerConfig, ScheduleConfig
from distill.training.meter import Meter
from distill.training.objective import Objective
from distill.training.on_policy import OnPolicy
from distill.training.optim import build_optimizers, scale_and_clip, scale_learning_rates
from distill.training.schedule import factor
from distill.training.sharding import equal_windows, shard
from distill.training.student import AnyStudent

LOG_EVERY_WINDOWS = 10


class DistillModule(lightning.LightningModule):
    """Trains the draft; every average is over the supervised tokens of the global batch.

    The loss of a micro-batch is a sum. Gradients are divided by the step's supervised tokens on all
    ranks only once they are complete, so neither micro-batches nor ranks weigh more for holding
    fewer tokens.

    The teacher is no submodule: it has no part in parameters, optimizer, checkpoints or train().
    """

    def __init__(
        self,
        student: AnyStudent,
        teacher: Teacher,
        objective: Objective,
        clock: Clock,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        gradient_clip: float = 1.0,
        on_policy: OnPolicy | None = None,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.student = student
        self.teacher = teacher
        self.clock = clock
        self.meter = Meter()
        self.stop_signal = 0
        """Number of the signal that asked this rank to stop."""
        self.stopping = False
        """Whether any rank was asked to stop; known alike on all ranks after each window."""
        self._on_policy = on_policy
        self._objective = objective
        self._optimizer_config = optimizer
        self._schedule = schedule
        self._gradient_clip = gradient_clip
        self._memory_returned = False

    @property
    def draft(self) -> PreTrainedModel:
        return self.student.draft

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            assert self.device_mesh is not None  # the strategy made it before this hook
            shard(self.student, self.device_mesh)

    def configure_optimizers(self) -> list[Optimizer]:
        return build_optimizers(self.student, self._optimizer_config)

    def on_fit_start(self) -> None:
        self.teacher.to(self.device)

    def on_train_start(self) -> None:
        self.draft.train()
        self.clock.start()

    def training_step(self, window: list[Batch], batch_idx: int) -> None:
        """Accumulate a window, agree on its tokens with the other ranks, step if there were any."""
        if self._on_policy is not None:
            window = self._on_policy.window(self.draft, window, self.clock.spent.windows)
        tokens, seconds = self._agree(self._accumulate(window))
        self.clock.advance(tokens, seconds)
        norm = self._step(tokens) if tokens else 0.0
        for optimizer in self._optimizers():
            optimizer.zero_grad(set_to_none=True)
        if self.clock.spent.windows % LOG_EVERY_WINDOWS == 0:
            self._log_interval(norm)
        self._return_memory()

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        positions = predicting_positions(batch["supervised"])
        return self.held_out_sums(batch, positions, self.teacher.signal(batch, positions))

    def held_out_sums(self, batch: Batch, positions: Tensor, signal: Signal) -> dict[str, Tensor]:
        """Sums over supervised tokens: KL(p‖q) whatever the objective, alpha, agreement, tokens."""
        return self.student(batch, positions, signal, Objective())[1]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["clock"] = self.clock.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.clock.load_state_dict(checkpoint["clock"])

    def _accumulate(self, window: list[Batch]) -> int:
        """Add the gradients of the window's loss sum; return its supervised tokens."""
        work = [(batch, predicting_positions(batch["supervised"])) for batch in window]
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            work = equal_windows(work)
        else:
            # The first of an empty window stays: other ranks may be waiting for this one's zeros.
            work = [item for item in work if item[1].numel()] or work[:1]
        for index, (batch, positions) in enumerate(work):
            signal = self.teacher.signal(batch, positions) if positions.numel() else None
            with self._gradient_sync(last=index == len(work) - 1):
                loss, sums = self.student(batch, positions, signal, self._objective)
                self.manual_backward(loss)
            self.meter.add(sums)
        return sum(positions.numel() for _, positions in work)

    def _agree(self, tokens: int) -> tuple[int, float]:
        """The window's supervised tokens on all ranks, and rank 0's seconds, alike on all ranks.

        Notes whether any rank is to stop.
        """
        seconds = self.clock.lap() * self.trainer.is_global_zero
        facts = [float(tokens), seconds, float(self.stop_signal > 0)]
        if self.trainer.world_size > 1:
            shared = torch.tensor(facts, dtype=torch.double, device=self.device)
            distributed.all_reduce(shared)
            facts = shared.tolist()
        self.stopping = facts[2] > 0
        return int(facts[0]), facts[1]

    def _step(self, tokens: int) -> float:
        """Turn summed gradients into means per token, clip, step; return the norm before clipping.

        DDP and FSDP hand out the mean over ranks of the ranks' sums, hence the world size.
        """
        scale = gradient_scale(tokens, self.trainer.world_size)
        norm = scale_and_clip(self.student.parameters(), scale, self._gradient_clip)
        optimizers = self._optimizers()
        scale_learning_rates(optimizers, factor(self._schedule, self.clock.progress))
        for optimizer in optimizers:
            optimizer.step()
        return norm

    @contextmanager
    def _gradient_sync(self, last: bool) -> Iterator[None]:
        """Exchange gradients between ranks with the window's last backward pass only."""
        strategy = self.trainer.strategy
        if isinstance(strategy, ModelParallelStrategy):
            self.student.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
        if not last and isinstance(strategy, ParallelStrategy):
            with strategy.block_backward_sync():
                yield
        else:
            yield

    def _optimizers(self) -> list[Any]:
        optimizers = self.optimizers()
        return optimizers if isinstance(optimizers, list) else [optimizers]

    def _log_interval(self, norm: float) -> None:
        means = self.meter.read(self.device)
        self.log_dict(
            {
                "train/loss": means["divergence"],
                "train/alpha": means["alpha"],
                "train/lr": self._optimizers()[-1].param_groups[0]["lr"],
                "train/grad_norm": norm,
                "train/tokens": float(self.clock.spent.tokens),
                "train/tokens_per_second": self.clock.tokens_per_second,
            },
            batch_size=1,
        )

    def _return_memory(self) -> None:
        """Give what is free back to the system, once, after the first step.

        That step makes the optimizer's state where the first loss had its buffers. What remains of
        them fits none of the next loss's buffers, and would be held beside those to the end.
        """
        if self.clock.spent.steps and not self._memory_returned:
            return_freed_memory()
            self._memory_returned = True
