"""What a training is told: one dataclass a config group, each with the ranges of its keys.

Nothing heavy is imported here: the command line reads it before it answers `--help`. What depends
on the machine or on several groups is checked in `distill.training.check`.
"""

from dataclasses import dataclass, field, replace

from distill.content import deciding
from distill.errors import UserError

SCHEDULES = ("cosine", "wsd", "constant")
RATES = {
    "pruned": (2.1e-3, 2.8e-3),
    "svd": (2.1e-3, 1e-2),
    "scratch": (2.1e-3, 1e-2),
    "eagle3": (2.1e-3, 1e-2),
    "pretrained": (2e-5, 2e-5),
    "ready": (2.1e-3, 2.8e-3),
}
"""`lr` and `muon_lr` by `draft.init`.

Weights that are trained already want smaller steps; those of a pretrained draft are usual for
finetuning. Of the others the recipe study tells (evaluate/RESULTS.md)."""
STRATEGIES = ("auto", "ddp", "fsdp")
PRECISIONS = ("auto", "32-true", "bf16-mixed")
MONITORS = ("alpha", "decoding_alpha", "decoding_speedup")
"""The number by which the best candidates are kept: alpha on the validation rows, or what decoding
while training measured."""


@dataclass
class OptimizerConfig:
    """AdamW with the rate `lr`; `muon: true` gives the hidden matrices to Muon with `muon_lr`.

    A rate that is null is the one of the draft's start (`RATES`).
    """

    lr: float | None = None
    betas: list[float] = field(default_factory=lambda: [0.9, 0.95])
    weight_decay: float = 0.01
    muon: bool = False
    muon_lr: float | None = None

    def __post_init__(self) -> None:
        for name in ("lr", "muon_lr"):
            rate = getattr(self, name)
            if rate is not None and not rate > 0:
                raise UserError(f"optimizer.{name} is {rate}; it must be above 0")
        if not self.weight_decay >= 0:
            raise UserError(
                f"optimizer.weight_decay is {self.weight_decay}; it must not be negative"
            )
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"optimizer.betas is {list(self.betas)}; give two numbers in [0, 1)")

    def for_start(self, init: str) -> "OptimizerConfig":
        """The same with numbers for the rates that are null, by how the draft starts."""
        lr, muon_lr = RATES[init]
        return replace(
            self,
            lr=lr if self.lr is None else self.lr,
            muon_lr=muon_lr if self.muon_lr is None else self.muon_lr,
        )


@dataclass
class ScheduleConfig:
    """Learning-rate factor over the budget spent. name: one of `SCHEDULES`."""

    name: str = "cosine"
    warmup: float = 0.05
    floor: float = 0.05
    decay: float = 0.3
    """Share of the budget that `wsd` decays over."""

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise UserError(f"schedule.name is {self.name}; use cosine, wsd or constant")
        for name in ("warmup", "floor", "decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"schedule.{name} is {getattr(self, name)}; use a share, 0 to 1")
        if self.name == "wsd" and self.warmup + self.decay > 1.0:
            raise UserError(
                f"schedule.warmup {self.warmup} + schedule.decay {self.decay} is above 1"
            )


@dataclass
class TrainerConfig:
    """What `lightning.Trainer` is given, and the batch.

    One optimiser step sees at most `tokens_per_step` tokens on each rank, in micro-batches of at
    most `tokens_per_batch`.
    """

    accelerator: str = deciding(default="auto")
    """This one and the next three say where it runs: a training goes on elsewhere as it is."""
    devices: str = deciding(default="auto")
    num_nodes: int = deciding(default=1)
    strategy: str = deciding(default="auto")
    precision: str = "auto"
    tokens_per_batch: int = 1024
    tokens_per_step: int = 1024
    gradient_clip: float = 1.0
    compile: bool = deciding(default=False)
    """torch.compile the draft's forward and backward; needs a C++ compiler on CPU."""
    compile_target: bool = deciding(default=False)
    """On a CPU, torch.compile the blocks of a live target: faster, for some 170 MB more."""
    checkpoints: int = 6
    """Candidates written over the budget, evenly; the last is the end of training."""
    keep: int | None = None
    """How many candidates stay: the newest, and the best of the others by `monitor`; null: all."""
    monitor: str = "alpha"
    """`alpha` on validation rows, or `decoding_alpha`, `decoding_speedup` (`decode_every`)."""
    validate_every: float = deciding(default=0.1)
    """Share of the budget between validations."""
    decode_every: float = 0.0
    """Share of the budget between decodings of `decode_num_prompts` held-out prompts; 0: never."""
    decode_num_prompts: int = deciding("train", default=4, only_with="decode_every")
    decode_num_draft_tokens: int = deciding("train", default=3, only_with="decode_every")
    decode_max_new_tokens: int = deciding("train", default=32, only_with="decode_every")
    resume_every_seconds: float = deciding(default=60.0)

    def __post_init__(self) -> None:
        self._check_choice("strategy", STRATEGIES)
        self._check_choice("precision", PRECISIONS)
        self._check_at_least_one("tokens_per_batch", "tokens_per_step", "checkpoints", "num_nodes")
        if not 0 < self.validate_every <= 1:
            raise UserError(f"trainer.validate_every is {self.validate_every}; use 0 < share <= 1")
        self._check_choice("monitor", MONITORS)
        if self.keep is not None and self.keep < 1:
            raise UserError(f"trainer.keep is {self.keep}; keep at least 1, or null for all")
        self._check_decoding()
        if not self.gradient_clip >= 0:
            raise UserError(f"trainer.gradient_clip is {self.gradient_clip}; 0 switches it off")
        if self.devices != "auto" and not (self.devices.isdigit() and int(self.devices) > 0):
            raise UserError(
                f"trainer.devices is {self.devices}; use auto or a number of devices per node"
            )

    def _check_decoding(self) -> None:
        if not 0 <= self.decode_every <= 1:
            raise UserError(
                f"trainer.decode_every is {self.decode_every}; use a share of the budget, "
                "0 < share <= 1, or 0 to decode nothing while training"
            )
        if self.keep and self.monitor != "alpha" and not self.decode_every:
            raise UserError(
                f"trainer.monitor is {self.monitor} and nothing is decoded while training: set "
                "trainer.decode_every, such as 0.1, or trainer.monitor=alpha"
            )
        self._check_at_least_one("decode_num_prompts", "decode_num_draft_tokens")
        if self.decode_max_new_tokens <= self.decode_num_draft_tokens:
            raise UserError(
                f"trainer.decode_max_new_tokens is {self.decode_max_new_tokens}; it must be above "
                f"trainer.decode_num_draft_tokens, {self.decode_num_draft_tokens}"
            )

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        if getattr(self, name) not in choices:
            raise UserError(
                f"trainer.{name} is {getattr(self, name)}; use one of {', '.join(choices)}"
            )

    def _check_at_least_one(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise UserError(f"trainer.{name} is {getattr(self, name)}; it must be at least 1")


@dataclass
class BudgetConfig:
    """Training ends at the first of the two that is reached. A null one never ends it."""

    tokens: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"budget.{name} is {value}; it must be above 0")
