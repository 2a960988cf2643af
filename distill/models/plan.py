"""A draft on paper: its architecture, and the memory that its training takes.

The architecture is the target's family, scaled to a share of its parameters.

Rule, for what the config leaves open (`distill.models.sizes` has the rest):

- hidden: the widest step (a power of two, about hidden_target/16) whose model holds at least four
  layers within the parameter budget. A draft step is bound by reading the head and by per-layer
  overhead, so shallow and wide decodes faster than deep and narrow.
- layers: what the budget still holds, at most eight unless the width is the target's own.

Parameters are counted, not estimated, on torch's meta device.

Memory: bf16 target; fp32 draft weights, gradients and two AdamW moments; bf16 activations kept for
the backward, about 16 values of the hidden width and 3 of the intermediate one per token and layer;
three chunk buffers of logits in fp32 (the loss never holds more).
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import UserError
from distill.models.code import auto_config, is_own_code
from distill.models.config import SIZES, DraftConfig
from distill.models.sizes import (
    check_cut,
    check_family,
    intermediate_size,
    scaled_config,
    widths,
)

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

_FEW_LAYERS, _MANY_LAYERS = 4, 8
TARGET_BYTES, DRAFT_BYTES, ACTIVATION_BYTES, LOGIT_BYTES = 2, 16, 2, 4
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class DraftPlan:
    """A draft before it exists.

    parameters counts a tied head once. bytes_per_token: weights read by one decode step at batch 1
    (an embedding that is only looked up is not read). head_share: the head's part of those bytes.
    """

    config: "PretrainedConfig"
    parameters: int
    target_parameters: int
    bytes_per_token: int
    head_share: float

    @property
    def ratio(self) -> float:
        """The draft's share of the target's parameters."""
        return self.parameters / self.target_parameters

    def table(self) -> str:
        """Lines of `name value`, for the terminal and the run's log."""
        config = self.config
        kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
        tied = "tied" if config.tie_word_embeddings else "untied"
        rows = {
            "family": config.model_type,
            "layers x hidden": f"{config.num_hidden_layers} x {config.hidden_size}",
            "intermediate": intermediate_size(config),
            "heads / key-value heads": f"{config.num_attention_heads} / {kv_heads}",
            "vocabulary": f"{config.vocab_size} ({tied})",
            "parameters": f"{self.parameters / 1e6:.2f} M",
            "of the target": f"{self.ratio:.4f} ({self.target_parameters / 1e6:.2f} M)",
            "bytes per token": f"{self.bytes_per_token / 1e6:.2f} MB",
            "head share": f"{self.head_share:.3f}",
        }
        return "\n".join(f"{name:<24}{value}" for name, value in rows.items())


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device."""

    target: int
    draft_and_optimizer: int
    activations: int
    loss_buffers: int

    @property
    def total(self) -> int:
        """All of them."""
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


def plan_draft(target_folder: Path, draft: DraftConfig, *, bytes_per_weight: int = 2) -> DraftPlan:
    """Plan from the target's config alone; no weights are read. 2 bytes: served in bfloat16.

    Raises:
        UserError: sizes that cannot be built, a ratio too small for the vocabulary, a draft not
            smaller than the target, a mixture-of-experts target, a pruned draft that is no part of
            its target.
    """
    target = text_config(target_folder)
    _check_request(target, draft)
    target_parameters = count_weights(target)
    config = _search(target, draft, draft.parameter_ratio * target_parameters)
    if draft.init == "pruned":
        check_cut(target, config)
    model = build_meta(config)
    parameters = sum(weight.numel() for weight in model.parameters())
    if parameters >= target_parameters:
        raise UserError(
            f"the draft would have {parameters} parameters and the target has {target_parameters}: "
            "lower draft.hidden_size or draft.num_hidden_layers."
        )
    read, head = _weights_read(model)
    return DraftPlan(
        config, parameters, target_parameters, read * bytes_per_weight, head_share=head / read
    )


def resolve_init(target_folder: Path) -> str:
    """What `draft.init=auto` is for this target: `pruned` where its family allows it, else `svd`.

    A pruned start reaches a higher alpha with the same training (evaluate/RESULTS.md, recipe).
    """
    try:
        check_family(text_config(target_folder))
    except UserError:
        return "svd"
    return "pruned"


def plan_from_folder(
    target_folder: Path, draft_folder: Path, bytes_per_weight: int = 2
) -> DraftPlan:
    """The plan of a draft that exists; only its config is read."""
    config = text_config(draft_folder)
    model = build_meta(config)
    read, head = _weights_read(model)
    return DraftPlan(
        config,
        sum(weight.numel() for weight in model.parameters()),
        count_weights(text_config(target_folder)),
        read * bytes_per_weight,
        head_share=head / read,
    )


def plan_memory(
    plan: DraftPlan,
    *,
    tokens_per_batch: int,
    chunk_size: int,
    target_shards: int,
    draft_shards: int,
) -> MemoryPlan:
    """Memory on each device; the weights of a model may be spread over several (`shards`)."""
    config = plan.config
    per_token = config.num_hidden_layers * (16 * config.hidden_size + 3 * intermediate_size(config))
    return MemoryPlan(
        target=plan.target_parameters * TARGET_BYTES // target_shards,
        draft_and_optimizer=plan.parameters * DRAFT_BYTES // draft_shards,
        activations=tokens_per_batch * per_token * ACTIVATION_BYTES,
        loss_buffers=3 * min(chunk_size, tokens_per_batch) * config.vocab_size * LOGIT_BYTES,
    )


def build_meta(config: "PretrainedConfig", *, trust_remote_code: bool = False) -> "nn.Module":
    """Build the model of `config` without memory, for its names and shapes."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def text_config(folder: Path) -> "PretrainedConfig":
    """The config of the target's text model. UserError for a mixture of experts."""
    config = auto_config(folder).get_text_config(decoder=True)
    if is_own_code(config):
        raise UserError(
            "no draft is made from a target that brings code of its own: set draft=pretrained "
            "and draft.model.id to a small model of its family."
        )
    if any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS):
        raise UserError(
            "no draft can be scaled from a mixture-of-experts target: set draft.init=pretrained "
            "and draft.model to a small dense model of its family."
        )
    return config


def _check_request(target: "PretrainedConfig", draft: DraftConfig) -> None:
    for name in SIZES:
        asked = getattr(draft, name) is not None
        if asked and name != "intermediate_size" and not hasattr(target, name):
            raise UserError(f"{target.model_type} has no {name}: leave draft.{name} null.")
    if draft.init == "pruned":
        check_family(target)
    for whole, part in itertools.combinations(
        ("hidden_size", "num_attention_heads", "num_key_value_heads"), 2
    ):
        size, divisor = getattr(draft, whole), getattr(draft, part)
        if size and divisor and size % divisor:
            raise UserError(
                f"draft.{whole} {size} is no multiple of draft.{part} {divisor}: change one."
            )


def _search(target: "PretrainedConfig", draft: DraftConfig, budget: float) -> "PretrainedConfig":
    """Return the widest config that holds enough layers within `budget` parameters."""
    wanted = draft.num_hidden_layers or min(_FEW_LAYERS, target.num_hidden_layers)
    fits: dict[int, int] = {}
    for hidden in [draft.hidden_size] if draft.hidden_size else widths(target, draft):
        if draft.num_hidden_layers and draft.hidden_size:
            return scaled_config(target, draft, hidden, wanted)
        one, two = (
            count_weights(scaled_config(target, draft, hidden, layers)) for layers in (1, 2)
        )
        fits[hidden] = 1 + math.floor((budget - one) / (two - one))
    # Fewer than wanted only where no width holds them; an asked-for depth is never shortened.
    fewest = wanted if draft.num_hidden_layers else 1
    for enough in range(wanted, fewest - 1, -1):
        holding = [hidden for hidden, layers in fits.items() if layers >= enough]
        if holding:
            hidden = max(holding)
            at_most = _MANY_LAYERS if hidden < target.hidden_size else target.num_hidden_layers
            if draft.init == "pruned":
                at_most = min(at_most, target.num_hidden_layers)
            layers = draft.num_hidden_layers or min(fits[hidden], at_most)
            return scaled_config(target, draft, hidden, layers)
    raise UserError(
        f"draft.parameter_ratio {draft.parameter_ratio} ({budget / 1e6:.2f} M parameters) is too "
        f"small for a vocabulary of {target.vocab_size} at these sizes: raise it, or lower "
        "draft.hidden_size or draft.num_hidden_layers."
    )


def count_weights(config: "PretrainedConfig") -> int:
    """Parameters of the model of a config, a tied head once."""
    return sum(weight.numel() for weight in build_meta(config).parameters())


def _weights_read(model: "nn.Module") -> tuple[int, int]:
    """Return weights read by one decode step, and the head's among them."""
    from torch import nn

    head = model.get_output_embeddings().weight  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    looked_up = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.weight is not head
    }
    read = sum(w.numel() for w in model.parameters() if id(w) not in looked_up)
    return read, head.numel()
