"""The sizes of a draft: those that suit its target, the config that has them, and what can be cut.

- heads: the divisor of hidden that brings heads x head_dim nearest to hidden; head_dim stays the
  target's where the family lets it differ from hidden/heads (kernels exist for it).
- key-value heads: the divisor of heads nearest to the target's ratio. A pruned draft's attention
  keeps whole groups, a key-value head and all its query heads: so their ratio and the width of a
  head stay the target's.
- intermediate: the target's ratio to hidden. vocab_size: the target's, padding included, since
  servers ask for equal heads. Embeddings are tied as the target's are.
- pruned: heads and intermediate twice as wide as that, up to the target's own. What is cut from the
  stream can be projected, heads and channels are lost: at equal parameters four such layers reach
  the alpha of eight slim ones, and a draft step costs less.

Explicit sizes of the config override each. No torch: asked before models load.
"""

import copy
import math
from typing import TYPE_CHECKING, Any

from distill.errors import UserError
from distill.models.config import DraftConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Pre-norm decoders with RMSNorm and gated MLPs: `distill.models.prune` knows each part."""
_REMEDY = "set draft.init=svd, or draft.init=pretrained and draft.model"
_CUT_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_key_value_heads")
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


def group_size(target: "PretrainedConfig") -> int:
    """Query heads of one key-value head."""
    return target.num_attention_heads // target.num_key_value_heads


def head_width(config: "PretrainedConfig") -> int:
    """Dimensions of one head."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def check_family(target: "PretrainedConfig") -> None:
    """Refuse a target that has parts no rule is written for.

    Raises:
        UserError: another family, or layers that attend differently (a cut would mix them up).
    """
    if target.model_type not in FAMILIES:
        raise UserError(
            f"no draft can be pruned from {target.model_type}, only from {', '.join(FAMILIES)}: "
            f"{_REMEDY}."
        )
    if len(set(getattr(target, "layer_types", None) or ())) > 1:
        raise UserError(f"the target's layers attend in different ways, so none is cut: {_REMEDY}.")


def check_cut(target: "PretrainedConfig", draft: "PretrainedConfig") -> None:
    """Refuse a draft that is no part of the target.

    Raises:
        UserError: a size above the target's, a divided group, another head width, a tied head where
            the target's is its own matrix.
    """
    for name in _CUT_SIZES:
        size, most = getattr(draft, name), getattr(target, name)
        if size > most:
            raise UserError(
                f"a pruned draft is a part of its target: draft.{name} is at most {most}."
            )
    group, width = group_size(target), head_width(target)
    if draft.num_attention_heads != group * draft.num_key_value_heads:
        raise UserError(
            f"heads are pruned in groups of {group}: draft.num_attention_heads is {group} times "
            "draft.num_key_value_heads; change one, or leave it null."
        )
    if head_width(draft) != width:
        raise UserError(
            f"{draft.model_type} heads are hidden_size / heads wide, the target's {width}: "
            f"make draft.hidden_size a multiple of {width * group}, draft.num_attention_heads null."
        )
    if draft.tie_word_embeddings and not target.tie_word_embeddings:
        raise UserError(
            "the target's head is not its embedding, so a pruned draft's isn't either: "
            "leave draft.tie_word_embeddings null."
        )
