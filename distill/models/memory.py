"""Memory of a training job on paper, before any weight is fetched.

Assumptions: bf16 target; fp32 draft weights, gradients and two AdamW moments; bf16 activations kept
for the backward, about 16 values of the hidden width and 3 of the intermediate one per token and
layer; three chunk buffers of logits in fp32 (the loss never holds more).
"""

from dataclasses import dataclass

from distill.models.plan import DraftPlan
from distill.models.sizes import intermediate_size

TARGET_BYTES, DRAFT_BYTES, ACTIVATION_BYTES, LOGIT_BYTES = 2, 16, 2, 4


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device."""

    target: int
    draft_and_optimizer: int
    activations: int
    loss_buffers: int

    @property
    def total(self) -> int:
        return self.target + self.draft_and_optimizer + self.activations + self.loss_buffers

    def table(self) -> str:
        """Lines of `name value`, in GiB."""
        rows = {
            "target weights": self.target,
            "draft, gradients, AdamW": self.draft_and_optimizer,
            "activations": self.activations,
            "loss buffers": self.loss_buffers,
            "in all, per device": self.total,
        }
        return "\n".join(f"{name:<24}{value / 2**30:.2f} GiB" for name, value in rows.items())


def plan_memory(
    plan: DraftPlan,
    *,
    tokens_per_batch: int,
    chunk_size: int,
    target_shards: int,
    draft_shards: int,
) -> MemoryPlan:
    """Per device; the weights of each model may be spread over several."""
    config = plan.config
    per_token = config.num_hidden_layers * (16 * config.hidden_size + 3 * intermediate_size(config))
    return MemoryPlan(
        target=plan.target_parameters * TARGET_BYTES // target_shards,
        draft_and_optimizer=plan.parameters * DRAFT_BYTES // draft_shards,
        activations=tokens_per_batch * per_token * ACTIVATION_BYTES,
        loss_buffers=3 * min(chunk_size, tokens_per_batch) * config.vocab_size * LOGIT_BYTES,
    )
