"""Which targets can be cut into a draft, and into which sizes. No torch: asked before models load.

A draft's attention keeps whole groups: a key-value head and all its query heads. So heads over
key-value heads and the width of a head stay the target's.
"""

from typing import TYPE_CHECKING

from distill.errors import UserError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Pre-norm decoders with RMSNorm and gated MLPs: `distill.models.prune` knows each part."""
_REMEDY = "set draft.init=svd, or draft.init=pretrained and draft.model"
_SIZES = ("hidden_size", "num_hidden_layers", "intermediate_size", "num_key_value_heads")


def group_size(target: "PretrainedConfig") -> int:
    """Query heads of one key-value head."""
    return target.num_attention_heads // target.num_key_value_heads


def head_width(config: "PretrainedConfig") -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def check_family(target: "PretrainedConfig") -> None:
    """Refuse a target that has parts no rule is written for.

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

    UserError: a size above the target's, a divided group, another head width, a tied head where the
    target's is its own matrix.
    """
    for name in _SIZES:
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
