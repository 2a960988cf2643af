"""What is measured, and how: the configuration of everything that decodes, times or judges."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from distill.content import deciding
from distill.errors import UserError
from distill.speculative.sampling import Sampling


def check_at_least(least: int, group: str, **values: int | list[int]) -> None:
    """Refuse a number below `least`, or a list that is empty or holds one.

    Raises:
        UserError: naming `group` and the key.
    """
    for name, value in values.items():
        every = value if isinstance(value, list) else [value]
        if not every or min(every) < least:
            raise UserError(f"{group}.{name}={value}: give values from {least} up")


@dataclass
class EvaluateConfig:
    """Real speculative decoding over held-out prompts: every k at every load.

    A load is one of `samplings` at one of `batch_sizes`. The first of both is the serving setting,
    whose verdict is the job's.
    """

    candidates: list[str] = deciding(default_factory=list)
    """Drafts, folders of training runs or MLflow URIs; empty: this job's own checkpoints."""
    max_candidates: int = deciding("measure", default=3)
    """Decoded for real: the best by teacher-forced alpha on held-out rows, and always the last."""
    num_draft_tokens: list[int] = deciding("measure", default_factory=lambda: [1, 2, 3, 4])
    confidence_threshold: float = deciding("measure", default=0.0)
    """A round ends early behind a token to which the draft gave less probability; 0: never."""
    samplings: list[Sampling] = deciding("measure", default_factory=lambda: [Sampling()])
    batch_sizes: list[int] = deciding("measure", default_factory=lambda: [1])
    prompt_lookup: bool = deciding("measure", default=True)
    """Measure the untrained baseline too: drafts that are looked up in the prompt itself."""
    context_edges: list[int] = deciding("measure", default_factory=lambda: [256, 1024, 4096])
    """Upper edges of the context-length buckets, in prompt tokens."""
    prompts: str | None = deciding(default=None)
    """A JSONL file, read as `data=jsonl` reads one; null: the held-out part of the data."""
    domains: list[str] | None = deciding("measure", default=None)
    """Only prompts of these domains."""
    num_prompts: int = deciding("measure", default=16)
    """Conversations, spread evenly over the domains; each of their turns is decoded."""
    max_new_tokens: int = deciding("measure", default=64)
    margin: float = deciding("judge", default=1.0)
    """`ship` needs the lower bound of the speedup end to end, prompts included, above this."""
    decoding_margin: float | None = deciding("judge", default=None)
    """The same for decoding alone; null: it is told and not judged."""
    floors: dict[str, float] = deciding("judge", default_factory=dict)
    """Domain to the speedup end to end that it needs: `+evaluate.floors.code=1.0`."""
    gate: bool = deciding(default=False)
    """Exit non-zero on `do not ship`."""

    def __post_init__(self) -> None:
        for name in ("num_draft_tokens", "batch_sizes", "context_edges"):
            values = getattr(self, name)
            if not values or min(values) < 1 or len(set(values)) < len(values):
                raise UserError(f"evaluate.{name}={values}: give values from 1 up, each once")
        if self.context_edges != sorted(self.context_edges):
            raise UserError(f"evaluate.context_edges={self.context_edges}: edges must rise")
        for name in ("num_prompts", "max_new_tokens", "max_candidates"):
            if getattr(self, name) < 1:
                raise UserError(f"evaluate.{name}={getattr(self, name)}: give at least 1")
        if not 0 <= self.confidence_threshold <= 1:
            raise UserError(
                f"evaluate.confidence_threshold={self.confidence_threshold}: a probability, 0 to 1"
            )
        if self.domains is not None and not self.domains:
            raise UserError("evaluate.domains=[] leaves no prompt: null takes those of all domains")
        if self.domains is not None and (left := sorted({*self.floors} - {*self.domains})):
            raise UserError(
                f"evaluate.floors: {left[0]!r} is not in evaluate.domains={self.domains}: add it "
                "there, or drop the floor"
            )
        names = [one.name for one in self.samplings]
        if not names or len(set(names)) < len(names):
            raise UserError(
                f"evaluate.samplings={names}: give at least one, each once, such as "
                "[{temperature:1},{temperature:0}]"
            )


@dataclass
class CertifyConfig:
    """The certificate that this configuration's own pair decodes exactly."""

    samples: int = 200_000
    """Rows of joint tokens for each sampling feature, against their exact law."""
    num_prompts: int = 8
    max_new_tokens: int = 64

    def __post_init__(self) -> None:
        check_at_least(1, "certify", **vars(self))


@dataclass
class HeadShapes:
    """A pair whose loss is timed: ids, and the widths that draft and target give their heads."""

    vocabulary_size: int = MISSING
    width: int = MISSING
    target_width: int = MISSING

    def __post_init__(self) -> None:
        check_at_least(
            1, "benchmark.heads", **{k: v for k, v in vars(self).items() if v != MISSING}
        )


@dataclass
class SignalsConfig:
    """`what=signals`: what a cached signal costs in bytes and in the draft's gradient."""

    k: list[int] = field(default_factory=lambda: [8, 32, 128])
    draws: list[int] = field(default_factory=lambda: [12, 50, 200])
    batches: int = 8
    """Micro-batches of training rows."""
    encodings: int = 4
    """Encodings of each signal, with other random numbers each; the noise is their spread."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value != []}
        check_at_least(1, "benchmark.signals", **given)
        check_at_least(2, "benchmark.signals", encodings=self.encodings)


WHAT = ("decoding", "training", "loss", "signals", "verdict")


@dataclass
class BenchmarkConfig:
    """How fast this code is beside others', on this configuration's own models.

    what: `decoding`, this engine against transformers' `generate`, greedy, no end token;
    `training`, this trainer against TRL's GKD trainer; `loss`, each divergence of the fused loss
    against its matrix products; `signals`, each cached signal against the exact gradient;
    `verdict`, how often simulated evaluations of a known speedup are judged wrongly.
    """

    what: str = "decoding"
    num_draft_tokens: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    batch_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    max_new_tokens: int = 48
    repetitions: int = 2
    """Each is all arms in order, then in reverse: A B B A."""
    warmup: int = 2
    steps: int = 6
    """Optimiser steps of a training run that are timed, after `warmup`."""
    cached: list[str] = field(default_factory=lambda: ["hidden", "top_k", "sampled"])
    """`what=training`: cached signals that are trained from too, beside the live target."""
    heads: list[HeadShapes] = field(default_factory=lambda: [])
    """`what=loss`: pairs of other sizes than this one; none: this one."""
    trl_python: str | None = None
    """An interpreter of an environment that has TRL; null: that arm is left out."""
    signals: SignalsConfig = field(default_factory=SignalsConfig)
    trials: int = 1000
    """`what=verdict`: simulated evaluations of each setting."""

    def __post_init__(self) -> None:
        if self.what not in WHAT:
            raise UserError(
                f"benchmark.what={self.what}: there is no such benchmark; use {', '.join(WHAT)}"
            )
        counted = ("num_draft_tokens", "batch_sizes", "max_new_tokens", "repetitions")
        values = {name: getattr(self, name) for name in (*counted, "warmup", "steps", "trials")}
        check_at_least(1, "benchmark", **values)


@dataclass
class CompareConfig:
    """`pipeline=compare`: two evaluations side by side."""

    runs: list[str] = field(default_factory=list)
    """Two places with measurements: folders, or ids of MLflow runs."""


@dataclass
class DraftSize:
    """A draft to try: a share of the target's parameters, or explicit sizes."""

    parameter_ratio: float = 0.1
    hidden_size: int | None = None
    num_hidden_layers: int | None = None


@dataclass
class ProbeConfig:
    """What a draft could gain here, before any training."""

    drafts: list[DraftSize] = field(
        default_factory=lambda: [DraftSize(0.05), DraftSize(0.1), DraftSize(0.2)]
    )
    """Built with random weights; a `ready` or `pretrained` draft is timed beside them."""
    head_vocabularies: list[int] = field(default_factory=lambda: [4096, 16384])
    """EAGLE-3 heads of so many ids, timed beside them where the target can have one."""
    num_draft_tokens: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 6, 8])
    batch_sizes: list[int] = field(default_factory=lambda: [1, 4])
    context_lengths: list[int] = field(default_factory=lambda: [256, 1024])
    alphas: list[float] = field(default_factory=lambda: [0.5, 0.6, 0.7, 0.8, 0.9])
    """The speedup is predicted at each, with its best k."""
    timings: int = 9
    """How often each step is timed; the median counts."""
    tokens: int = 200_000_000
    """Training tokens that the plan on paper is for."""
    teraflops: float = 400.0
    """Sustained by one training GPU, for the plan on paper: about 40% of an H100's bf16 peak."""
    measure: bool = True
    """Whether step times are measured; false: the plan on paper alone, which needs no weights."""

    def __post_init__(self) -> None:
        counts = ("num_draft_tokens", "batch_sizes", "context_lengths", "timings", "tokens")
        check_at_least(1, "probe", **{name: getattr(self, name) for name in counts})
        if not all(0 < alpha <= 1 for alpha in self.alphas):
            raise UserError(f"probe.alphas={self.alphas}: give values above 0 and up to 1")
        if self.teraflops <= 0:
            raise UserError(f"probe.teraflops={self.teraflops}: give a rate above 0")


@dataclass
class PlanConfig:
    """Sizes of a job, one of which is chosen by what this machine can do in `minutes`.

    A key of the configuration takes its number of the chosen size with `${of_size:NAME}`.
    """

    sizes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the size's name, from the smallest on: the numbers that it stands for; {}: no choice."""
    size: str | None = None
    """The one to take; null: the largest that ends in time here. That choice is recorded."""
    minutes: float = 25.0
    """For generate, cache, train and measure together."""

    def __post_init__(self) -> None:
        if self.size is not None and self.size not in self.sizes:
            known = ", ".join(self.sizes) or "none: give it a table in plan.sizes, or leave it out"
            raise UserError(f"plan.size={self.size}: there is no such size; there are {known}")
        if len({tuple(sorted(numbers)) for numbers in self.sizes.values()}) > 1:
            raise UserError("plan.sizes: give every size the same names")
        if not self.minutes > 0:
            raise UserError(f"plan.minutes={self.minutes}: give a time above 0")
