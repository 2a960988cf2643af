"""The plan on paper: what a draft costs to train and to keep, from parameters alone.

Assumptions, with P the target's parameters and p the draft's: a forward pass takes 2 FLOPs a
parameter and token, a backward pass twice that; so a training token takes 2P (the teacher's pass)
+ 6p. Attention over the context is left out. Answers sampled from the target come on top, at the
serving speed. Disk: int32 ids; a signal of top-64 takes 64 pairs of int32 id and bfloat16 value.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from distill.models.plan import DraftPlan

ID_BYTES, SIGNAL_BYTES, CHECKPOINT_BYTES = 4, 64 * (4 + 2), 2


@dataclass(frozen=True)
class Bill:
    """FLOPs for one token; seconds of one GPU; bytes on disk."""

    flops_per_draft_token: int
    flops_per_training_token: int
    gpu_seconds: float
    corpus_bytes: int
    signal_bytes: int
    draft_bytes: int


def bill(plan: DraftPlan, tokens: int, teraflops: float) -> Bill:
    """Of `tokens` training tokens at a sustained rate."""
    training = 2 * plan.target_parameters + 6 * plan.parameters
    return Bill(
        flops_per_draft_token=2 * plan.parameters,
        flops_per_training_token=training,
        gpu_seconds=training * tokens / (teraflops * 1e12),
        corpus_bytes=ID_BYTES * tokens,
        signal_bytes=SIGNAL_BYTES * tokens,
        draft_bytes=CHECKPOINT_BYTES * plan.parameters,
    )


def bills_table(plans: Mapping[str, DraftPlan], tokens: int, teraflops: float) -> Table:
    """One line a draft."""
    view = Table(title=f"On paper: {tokens / 1e6:,.0f} M training tokens at {teraflops:g} TFLOP/s")
    view.add_column("draft (layers × hidden)", overflow="fold")
    for heading in ("parameters", "of target", "MB/token", "GFLOP/token"):
        view.add_column(heading, justify="right", no_wrap=True)
    for heading in ("GPU-hours", "draft on disk", "token ids", "top-64 cache"):
        view.add_column(heading, justify="right", no_wrap=True)
    for name, plan in plans.items():
        cost = bill(plan, tokens, teraflops)
        view.add_row(
            name,
            f"{plan.parameters / 1e6:.1f} M",
            f"{plan.ratio:.3f}",
            f"{plan.bytes_per_token / 1e6:.1f}",
            f"{cost.flops_per_training_token / 1e9:.2f}",
            f"{cost.gpu_seconds / 3600:.2f}",
            f"{cost.draft_bytes / 1e6:.0f} MB",
            f"{cost.corpus_bytes / 1e9:.1f} GB",
            f"{cost.signal_bytes / 1e9:.1f} GB",
        )
    view.caption = (
        "MB/token: weights that one draft step reads in bfloat16. GFLOP/token: 2 × target (the "
        "teacher's pass) + 6 × draft parameters; attention over the context left out."
    )
    return view
