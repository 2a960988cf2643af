"""The plan on paper: what a draft costs to train and to keep, from numbers of parameters alone.

Assumptions, with P the target's parameters and p the draft's: a forward pass takes 2 FLOPs per
parameter and token, a backward pass twice that, so a training token takes 2P (the teacher's pass)
+ 6p. Attention over the context is left out. Answers sampled from the target come on top, at the
serving speed. Disk: int32 ids; a top-64 signal takes 64 pairs of an int32 id and a bfloat16 value.
"""

from dataclasses import dataclass

from distill.models.plan import DraftPlan

ID_BYTES, SIGNAL_BYTES, CHECKPOINT_BYTES = 4, 64 * (4 + 2), 2


@dataclass(frozen=True)
class Bill:
    """What one draft costs: FLOPs for one token, seconds of one GPU, bytes on disk."""

    flops_per_draft_token: int
    flops_per_training_token: int
    gpu_seconds: float
    corpus_bytes: int
    signal_bytes: int
    draft_bytes: int


def bill(plan: DraftPlan, tokens: int, teraflops: float) -> Bill:
    """The bill of `tokens` training tokens at a sustained rate of `teraflops`."""
    training = 2 * plan.target_parameters + 6 * plan.parameters
    return Bill(
        flops_per_draft_token=2 * plan.parameters,
        flops_per_training_token=training,
        gpu_seconds=training * tokens / (teraflops * 1e12),
        corpus_bytes=ID_BYTES * tokens,
        signal_bytes=SIGNAL_BYTES * tokens,
        draft_bytes=CHECKPOINT_BYTES * plan.parameters,
    )
