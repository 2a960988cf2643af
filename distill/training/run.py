"""Train a draft towards a teacher, from wherever an interrupted run of the same folder stopped."""

import logging
import signal
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
from lightning import Callback, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from transformers import PreTrainedModel

from distill.models.draft import save_draft
from distill.models.target import pick_dtype
from distill.teacher import Teacher
from distill.teacher.head import check_head
from distill.training.callbacks.candidates import CANDIDATES, Candidates, candidate_folders
from distill.training.callbacks.decoding import Decoding
from distill.training.callbacks.progress import BudgetProgress
from distill.training.callbacks.resume import RESUME, Resume, newest_resumable
from distill.training.callbacks.stopping import StopAtBudget, StopOnSignal
from distill.training.callbacks.validation import Validation
from distill.training.check import check_training
from distill.training.clock import Clock
from distill.training.config import BudgetConfig, OptimizerConfig, ScheduleConfig, TrainerConfig
from distill.training.masked import Mask
from distill.training.module import DistillModule
from distill.training.objective import Objective
from distill.training.on_policy import OnPolicy
from distill.training.student import Reading, student_of

log = logging.getLogger(__name__)


def train_draft(
    draft: PreTrainedModel,
    teacher: Teacher,
    datamodule: lightning.LightningDataModule,
    objective: Objective,
    optimizer: OptimizerConfig,
    schedule: ScheduleConfig,
    trainer: TrainerConfig,
    budget: BudgetConfig,
    folder: Path,
    *,
    vocabulary_size: int,
    target_folder: Path,
    kind: Reading | Mask | None = None,
    on_policy: OnPolicy | None = None,
    logger: Logger | None = None,
    decoding: Decoding | None = None,
    about: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Train until the budget is spent, writing `folder/candidates/tokens-*` and a state to resume.

    draft: fp32 weights, changed in place. teacher: gives the target's distributions of
    `vocabulary_size` ids, those that both heads share. datamodule: see `distill.data.datamodule`.
    objective: already checked against the teacher's signal. target_folder: gives every candidate
    its tokenizer and EOS list. kind: what else a draft of this kind is trained with. on_policy:
    answers rows anew, for a live teacher only. decoding: measures the draft with the engine on the
    way. about: what every candidate's metrics.json says beside its numbers. seed: seeds what is
    drawn while training.

    Returns:
        train_tokens, steps, seconds, tokens_per_second (validation and writing left out),
        candidates (paths, oldest first).

    Raises:
        UserError: settings that cannot work, before anything is trained.
        KeyboardInterrupt, SystemExit: Ctrl-C or SIGTERM came; the state is saved, and the same
            call goes on from it.
    """
    check_training(trainer, budget)
    if not isinstance(kind, Reading):
        check_head(draft)
    draft.train()  # a pretrained one comes in eval mode, of which Lightning would warn
    if trainer.compile:
        draft.base_model.compile(dynamic=True)  # micro-batches have many shapes
    lightning.seed_everything(seed, verbose=False)
    clock = Clock(budget)
    module = DistillModule(
        student_of(draft, vocabulary_size, kind),
        teacher,
        objective,
        clock,
        optimizer,
        schedule,
        gradient_clip=trainer.gradient_clip,
        on_policy=on_policy,
    )
    save = partial(save_draft, target_folder=target_folder)
    loop = build_trainer(
        trainer, callbacks(trainer, folder, save, decoding, about or {}), folder, logger
    )
    start = newest_resumable(folder / RESUME)
    if start is not None:
        log.info("going on from %s", start)
    with warnings.catch_warnings():
        # Lightning 2.6 calls torch 2.13 in a way that torch will drop, which no user can mend.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        loop.fit(module, datamodule=datamodule, ckpt_path=start, weights_only=True)
    if module.stopping and not clock.finished:
        raise KeyboardInterrupt if module.stop_signal == signal.SIGINT else SystemExit(143)
    return {
        "train_tokens": clock.spent.tokens,
        "steps": clock.spent.steps,
        "seconds": clock.spent.seconds,
        "tokens_per_second": clock.tokens_per_second,
        "candidates": [str(path) for path in candidate_folders(folder / CANDIDATES)],
    }


def callbacks(
    config: TrainerConfig,
    folder: Path,
    save: Any,
    decoding: Decoding | None,
    about: Mapping[str, Any],
) -> list[Callback]:
    """In the order in which they act after a window: measure, write, decide, save the state."""
    validation = Validation(config.validate_every)
    return [
        StopOnSignal(),
        validation,
        *([decoding] if decoding else []),
        Candidates(
            folder / CANDIDATES,
            config.checkpoints,
            validation,
            save,
            decoding,
            keep=config.keep,
            monitor=config.monitor,
            about=about,
        ),
        StopAtBudget(),
        Resume(folder / RESUME, config.resume_every_seconds),
        BudgetProgress(),
    ]


def build_trainer(
    config: TrainerConfig, callbacks: list[Callback], folder: Path, logger: Logger | None
) -> Trainer:
    """Lightning's trainer; its checkpoints, validation and end are off: ours follow the budget."""
    # Its lines on devices and its tips are of no use to a reader of our progress.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    # Slurm (or submitit) requeues the job; Lightning must not do it a second time.
    on_slurm = SLURMEnvironment.detect()
    return Trainer(
        accelerator=config.accelerator,
        devices=config.devices if config.devices == "auto" else int(config.devices),
        num_nodes=config.num_nodes,
        strategy=_strategy(config),
        precision=pick_precision(config),
        plugins=[SLURMEnvironment(auto_requeue=False)] if on_slurm else None,
        callbacks=callbacks,
        logger=logger or False,
        default_root_dir=folder,
        max_epochs=-1,
        log_every_n_steps=1,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )


def pick_precision(config: TrainerConfig) -> Literal["32-true", "bf16-mixed"]:
    """Weights are fp32 always; `auto` computes in bf16 where the device multiplies it natively."""
    if config.precision != "auto":
        return config.precision  # pyright: ignore[reportReturnType]
    on_gpu = config.accelerator != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    return "bf16-mixed" if pick_dtype("auto", device) == torch.bfloat16 else "32-true"


def _strategy(config: TrainerConfig) -> str | Strategy:
    if config.strategy == "ddp":
        return DDPStrategy(gradient_as_bucket_view=True)
    if config.strategy == "fsdp":
        per_node = torch.cuda.device_count() if config.devices == "auto" else int(config.devices)
        return ModelParallelStrategy(
            data_parallel_size=per_node * config.num_nodes,
            tensor_parallel_size=1,
            save_distributed_checkpoint=False,
        )
    return config.strategy
