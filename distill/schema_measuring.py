"""The groups of the configuration that say what is measured, and how; the rest is `schema.py`."""

from dataclasses import dataclass, field

from omegaconf import MISSING


@dataclass
class SamplingConfig:
    """The serving setting at which the draft is measured."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_new_tokens: int = 0


@dataclass
class EvaluateConfig:
    """Real speculative decoding over held-out prompts: every k at every load.

    A load is one of `samplings` at one of `batch_sizes`. The first of both is the serving setting,
    whose verdict is the job's.
    """

    candidates: list[str] = field(default_factory=list)
    """Drafts, folders of training runs or MLflow URIs; empty: this job's own checkpoints."""
    max_candidates: int = 3
    """Decoded for real: the best by teacher-forced alpha on held-out rows, and always the last."""
    num_draft_tokens: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    confidence_threshold: float = 0.0
    """A round ends early behind a token to which the draft gave less probability; 0: never."""
    samplings: list[SamplingConfig] = field(default_factory=lambda: [SamplingConfig()])
    batch_sizes: list[int] = field(default_factory=lambda: [1])
    contexts: list[int] = field(default_factory=lambda: [256, 1024, 4096])
    """Upper edges of the context-length buckets, in prompt tokens."""
    prompts: str | None = None
    """A JSONL file, read as `data=jsonl` reads one; null: the held-out part of the data."""
    domains: list[str] | None = None
    """Only prompts of these domains."""
    num_prompts: int = 16
    """Conversations, spread evenly over the domains; each of their turns is decoded."""
    max_new_tokens: int = 64
    racing: bool = False
    """Candidates and k that can no longer win stop decoding, after 5, 10, 20, … timed batches."""
    bootstrap: int = 2000
    margin: float = 1.0
    """`ship` needs the lower bound of speedup above this."""
    floors: dict[str, float] = field(default_factory=dict)
    """Domain to the speedup it needs: `+evaluate.floors.code=1.0`."""
    gate: bool = False
    """Exit non-zero on `do not ship`."""


@dataclass
class CertifyConfig:
    """The certificate that this configuration's own pair decodes exactly."""

    samples: int = 200_000
    """Rows of joint tokens for each sampling feature, against their exact law."""
    prompts: int = 8
    max_new_tokens: int = 64


@dataclass
class HeadShapes:
    """Of a pair whose loss is timed: ids, and what draft and target give their heads."""

    vocabulary_size: int = MISSING
    width: int = MISSING
    target_width: int = MISSING


@dataclass
class BenchmarkConfig:
    """`what=decoding`: this engine against transformers' `generate`, greedy, no end token.

    `what=training`: this trainer against TRL's GKD trainer.
    `what=loss`: each divergence of the fused loss against its matrix products.
    `what=selection`: screening and racing against decoding every candidate.
    """

    num_draft_tokens: list[int] = field(default_factory=lambda: [1, 2, 3, 4])
    batch_sizes: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    max_new_tokens: int = 48
    repetitions: int = 2
    """Each is all arms in order, then in reverse: A B B A."""
    warmup: int = 2
    steps: int = 6
    """Optimiser steps of a training run that are timed, after `warmup`."""
    orders: int = 100
    """`what=selection`: orders of the prompts in which a choice is played again."""
    signals: list[str] = field(default_factory=lambda: ["hidden", "top_k", "sampled"])
    """`what=training`: cached signals that are trained from too, beside the live target."""
    heads: list[HeadShapes] = field(default_factory=lambda: [])
    """`what=loss`: pairs of other sizes than this one; none: this one."""
    trl_python: str | None = None
    """An interpreter of an environment that has TRL; null: that arm is left out."""


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
    num_draft_tokens: list[int] = field(default_factory=lambda: [1, 2, 3, 4, 6, 8])
    batch_sizes: list[int] = field(default_factory=lambda: [1, 4])
    contexts: list[int] = field(default_factory=lambda: [256, 1024])
    alphas: list[float] = field(default_factory=lambda: [0.5, 0.6, 0.7, 0.8, 0.9])
    """The speedup is predicted at each, with its best k."""
    repetitions: int = 9
    tokens: int = 200_000_000
    """Training tokens that the plan on paper is for."""
    teraflops: float = 400.0
    """Sustained by one training GPU, for the plan on paper: about 40% of an H100's bf16 peak."""


@dataclass
class CodecsConfig:
    """`pipeline=codecs`: what a cached signal costs in bytes and in the draft's gradient."""

    k: list[int] = field(default_factory=lambda: [8, 32, 128])
    draws: list[int] = field(default_factory=lambda: [12, 50, 200])
    batches: int = 8
    """Micro-batches of training rows."""
    repetitions: int = 4
    """Encodings with other random numbers."""
