"""One optimiser step of distillation as a LightningModule.

A *window* is the list of micro-batches of one step on this rank; see `distill.data.datamodule`.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.parallel import ParallelStrategy
from torch import Tensor, distributed
from torch.optim import Optimizer
from transformers import PreTrainedModel

from distill.losses.tokens import predicting_positions
from distill.schema import OptimizerConfig, ScheduleConfig
from distill.teacher.live import LiveTeacher
from distill.teacher.signals import Teacher, TeacherSignal
from distill.training.average import WeightAverage
from distill.training.clock import Clock
from distill.training.gradients import scale_and_clip
from distill.training.meter import Meter
from distill.training.objective import Objective
from distill.training.on_policy import OnPolicy
from distill.training.optim import build_optimizers, scale_learning_rates
from distill.training.rng import rng_states, set_rng_state
from distill.training.schedule import factor
from distill.training.sharding import equal_windows, shard
from distill.training.student import Student

LOG_EVERY_WINDOWS = 10

Batch = dict[str, Tensor]


class DistillModule(lightning.LightningModule):
    """Trains the draft; every average is over the supervised tokens of the global batch.

    The loss of a micro-batch is a sum. Gradients are divided by the step's supervised tokens on all
    ranks only once they are complete, so neither micro-batches nor ranks weigh more for holding
    fewer tokens.

    Teacher and reference (the draft that a `learnable` objective compares with) are no submodules:
    they have no part in parameters, optimizer, checkpoints or train().
    """

    def __init__(
        self,
        draft: PreTrainedModel,
        teacher: Teacher,
        objective: Objective,
        clock: Clock,
        optimizer: OptimizerConfig,
        schedule: ScheduleConfig,
        vocabulary_size: int,
        gradient_clip: float = 1.0,
        on_policy: OnPolicy | None = None,
        reference: LiveTeacher | None = None,
    ):
        super().__init__()
        self.automatic_optimization = False
        match_width = teacher.width if objective.hidden_match else None
        self.student = Student(draft, vocabulary_size, match_width)
        self.teacher = teacher
        self.clock = clock
        self.meter = Meter()
        self.match_meter = Meter(("mismatch",))
        self.stop_signal = 0
        """Number of the signal that asked this rank to stop."""
        self.stopping = False
        """Whether any rank was asked to stop; known alike on all ranks after each window."""
        self._average = WeightAverage(draft.parameters(), optimizer.ema) if optimizer.ema else None
        self._on_policy = on_policy
        self._reference = reference
        self._objective = objective
        self._optimizer_config = optimizer
        self._schedule = schedule
        self._gradient_clip = gradient_clip
        self._restored_rng: list[dict[str, Any]] | None = None
        self._restored_average: dict[str, Any] | None = None

    @property
    def draft(self) -> PreTrainedModel:
        return self.student.draft

    def served_weights(self) -> AbstractContextManager[None]:
        """Inside, the draft has the weights that a candidate would have: their average, if any."""
        return nullcontext() if self._average is None else self._average.applied()

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            assert self.device_mesh is not None  # the strategy made it before this hook
            shard(self.student, self.device_mesh)

    def configure_optimizers(self) -> list[Optimizer]:
        return build_optimizers(self.student, self._optimizer_config)

    def on_fit_start(self) -> None:
        self.teacher.to(self.device)
        if self._reference is not None:
            self._reference.to(self.device)

    def on_train_start(self) -> None:
        self.draft.train()
        if self._restored_rng is not None:
            set_rng_state(self._restored_rng[self.global_rank % len(self._restored_rng)])
        if self._average is not None and self._restored_average is not None:
            self._average.load_state_dict(self._restored_average)
        self.clock.start()

    def training_step(self, window: list[Batch], batch_idx: int) -> None:
        """Accumulate a window, agree on its tokens with the other ranks, step if there were any."""
        if self._on_policy is not None:
            window = self._on_policy.window(self.draft, window, self.clock.spent.windows)
        matching = self.matching
        facts = self._agree(*self._accumulate(window))
        self.clock.advance(facts.tokens, facts.seconds)
        norm = self._step(facts.weight, matching) if facts.tokens else 0.0
        for optimizer in self._optimizers():
            optimizer.zero_grad(set_to_none=True)
        if self.clock.spent.windows % LOG_EVERY_WINDOWS == 0:
            self._log_interval(norm)

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        positions = predicting_positions(batch["supervised"])
        return self.held_out_sums(batch, positions, self.teacher.signal(batch, positions))

    def held_out_sums(
        self, batch: Batch, positions: Tensor, signal: TeacherSignal
    ) -> dict[str, Tensor]:
        """Sums over supervised tokens: KL(p‖q) whatever the objective, alpha, agreement, tokens."""
        return self.student(batch, positions, signal, Objective())[1]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["clock"] = self.clock.state_dict()
        checkpoint["rng"] = rng_states()
        if self._average is not None:
            checkpoint["average"] = self._average.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.clock.load_state_dict(checkpoint["clock"])
        self._restored_rng = checkpoint["rng"]
        self._restored_average = checkpoint.get("average")

    @property
    def matching(self) -> bool:
        """Whether training is in the phase that regresses the target's hidden states."""
        return self.clock.progress < self._objective.hidden_match

    def _accumulate(self, window: list[Batch]) -> tuple[int, float]:
        """Add the gradients of the window's loss sum; return its supervised tokens and weight."""
        work = [(batch, predicting_positions(batch["supervised"])) for batch in window]
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            work = equal_windows(work)
        else:
            # The first of an empty window stays: other ranks may be waiting for this one's zeros.
            work = [item for item in work if item[1].numel()] or work[:1]
        objective, meter = (
            (None, self.match_meter) if self.matching else (self._objective, self.meter)
        )
        tokens, weight = sum(positions.numel() for _, positions in work), 0.0
        for index, (batch, positions) in enumerate(work):
            signal = reference = None
            if positions.numel():
                signal = self.teacher.signal(batch, positions)
                if self._reference is not None and objective is not None:
                    reference = self._reference.signal(batch, positions)
            with self._gradient_sync(last=index == len(work) - 1):
                loss, sums = self.student(batch, positions, signal, objective, reference)
                self.manual_backward(loss)
            meter.add(sums)
            weight += float(sums.get("weight", positions.numel()))
        return tokens, weight

    def _agree(self, tokens: int, weight: float) -> "_Facts":
        """What all ranks know of the window alike; notes whether any rank is to stop."""
        seconds = self.clock.lap()
        mine = (float(self.stop_signal > 0), seconds * self.trainer.is_global_zero)
        facts = [float(tokens), weight, *mine]
        if self.trainer.world_size > 1:
            shared = torch.tensor(facts, dtype=torch.double, device=self.device)
            distributed.all_reduce(shared)
            facts = shared.tolist()
        self.stopping = facts[2] > 0
        return _Facts(int(facts[0]), facts[1], facts[3])

    def _step(self, weight: float, matching: bool) -> float:
        """Turn summed gradients into weighted means, clip, step; return the norm before clipping.

        DDP and FSDP hand out the mean over ranks of the ranks' sums, hence the world size.
        """
        for parameter in self.student.left_out(matching):
            parameter.grad = None
        norm = scale_and_clip(
            self.student.parameters(), self.trainer.world_size / weight, self._gradient_clip
        )
        optimizers = self._optimizers()
        scale_learning_rates(optimizers, factor(self._schedule, self.clock.progress))
        for optimizer in optimizers:
            optimizer.step()
        if self._average is not None:
            self._average.update()
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
        self.log_dict(
            {
                **self._means(),
                "train/lr": self._optimizers()[-1].param_groups[0]["lr"],
                "train/grad_norm": norm,
                "train/tokens": float(self.clock.spent.tokens),
                "train/tokens_per_second": self.clock.tokens_per_second,
            },
            batch_size=1,
        )

    def _means(self) -> dict[str, float]:
        """Of the phases since the last time; a phase without a token has nothing to say."""
        match, loss = self.match_meter.read(self.device), self.meter.read(self.device)
        found = {"train/mismatch": match["mismatch"]} if match["tokens"] else {}
        if loss["tokens"] or not match["tokens"]:
            found |= {"train/loss": loss["divergence"], "train/alpha": loss["alpha"]}
        return found


class _Facts(NamedTuple):
    """Of a window on all ranks: supervised tokens, their weight; rank 0's seconds."""

    tokens: int
    weight: float
    seconds: float
