"""One set of sizes for a draft of the target's family, and the config that has them.

- heads: the divisor of hidden that brings heads x head_dim nearest to hidden; head_dim stays the
  target's where the family lets it differ from hidden/heads (kernels exist for it).
- key-value heads: the divisor of heads nearest to the target's ratio; a pruned draft keeps the
  ratio itself (`distill.models.prunable`).
- intermediate: the target's ratio to hidden. vocab_size: the target's, padding included, since
  servers ask for equal heads. Embeddings are tied as the target's are.
- pruned: heads and intermediate twice as wide as that, up to the target's own. What is cut from the
  stream can be projected, heads and channels are lost: at equal parameters four such layers reach
  the alpha of eight slim ones, and a draft step costs less.

Explicit sizes of the config override each.
"""

import copy
import math
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.models.prunable import group_size, head_width
from distill.schema import DraftConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
_PRUNED_BREADTH = 2


def widths(target: "PretrainedConfig", draft: DraftConfig) -> list[int]:
    """Hidden sizes to choose from: whole steps, in which the heads asked for fit."""
    step = _step(target)
    part = draft.num_attention_heads or _head_unit(target, draft)
    if draft.init == "pruned" and not _free_head_dim(target):
        step *= group_size(target)
    return [width for width in range(step, target.hidden_size + 1, step) if width % part == 0]


def _head_unit(target: "PretrainedConfig", draft: DraftConfig) -> int:
    """What the number of heads is a multiple of."""
    group = group_size(target) if draft.init == "pruned" else 1
    return group * (draft.num_key_value_heads or 1)


def _step(target: "PretrainedConfig") -> int:
    """A power of two, about a sixteenth of the target's width; one head where heads fill it."""
    if not _free_head_dim(target):
        return target.hidden_size // target.num_attention_heads
    return max(8, 2 ** int(math.log2(max(target.hidden_size / 16, 1))))


def _free_head_dim(config: "PretrainedConfig") -> bool:
    """Whether the family states head_dim apart from hidden/heads: Llama does, GPT-2 doesn't."""
    return bool(getattr(config, "head_dim", None))


def scaled_config(
    target: "PretrainedConfig", draft: DraftConfig, hidden: int, layers: int
) -> "PretrainedConfig":
    """Return a copy of the target's config at these sizes, with the draft's explicit ones."""
    breadth = _PRUNED_BREADTH if draft.init == "pruned" else 1
    heads = draft.num_attention_heads or _heads(target, hidden, breadth, _head_unit(target, draft))
    changes: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }
    if hasattr(target, "num_key_value_heads"):
        changes["num_key_value_heads"] = draft.num_key_value_heads or _kv_heads(target, heads)
    changes |= _intermediate_change(target, draft, hidden * breadth)
    if draft.tie_word_embeddings is not None:
        changes["tie_word_embeddings"] = draft.tie_word_embeddings
    return _with(target, changes)


def _heads(target: "PretrainedConfig", hidden: int, breadth: int, unit: int) -> int:
    """Of two equally near, the wider attention. Rotary positions turn pairs: even widths."""
    head_dim = head_width(target)
    free = _free_head_dim(target)
    choices = [
        heads
        for heads in range(unit, hidden + 1, unit)
        if hidden % heads == 0 and (free or hidden // heads % 2 == 0)
    ]
    if not choices:
        multiple = unit if free else head_dim
        raise UserError(
            f"hidden size {hidden} holds no whole heads for {target.model_type}: change "
            f"draft.hidden_size to a multiple of {multiple}."
        )
    wanted = min(breadth * hidden, target.num_attention_heads * head_dim) if free else hidden
    return min(choices, key=lambda heads: (abs(heads * head_dim - wanted), -heads))


def _kv_heads(target: "PretrainedConfig", heads: int) -> int:
    ratio = target.num_attention_heads / (target.num_key_value_heads or target.num_attention_heads)
    divisors = [kv for kv in range(1, heads + 1) if heads % kv == 0]
    return min(divisors, key=lambda kv: (abs(kv - heads / ratio), kv))


def intermediate_size(config: "PretrainedConfig") -> int:
    """Return the MLP's width; GPT-2's n_inner is null where it means 4 x hidden."""
    for name in _INTERMEDIATE:
        if getattr(config, name, None):
            return getattr(config, name)
    return 4 * config.hidden_size


def _intermediate_change(
    target: "PretrainedConfig", draft: DraftConfig, width: int
) -> dict[str, int]:
    name = next((n for n in _INTERMEDIATE if hasattr(target, n)), None)
    if name is None:
        return {}
    step, full = _step(target), intermediate_size(target)
    proportional = min(width * full / target.hidden_size, full)
    return {name: draft.intermediate_size or max(step, step * round(proportional / step))}


def _with(target: "PretrainedConfig", changes: dict[str, Any]) -> "PretrainedConfig":
    """Apply `changes`; a setting with one entry per layer keeps its first ones."""
    config = copy.deepcopy(target)
    depth, layers = target.num_hidden_layers, changes["num_hidden_layers"]
    for name, value in target.to_dict().items():
        if isinstance(value, list) and len(value) == depth and name.startswith("layer"):
            changes[name] = (value * math.ceil(layers / depth))[:layers]
    for name, value in changes.items():
        setattr(config, name, value)
    return config
