"""What of a model's architecture decides whether and how it can decode over a ragged cache."""

from typing import Any

from transformers import PreTrainedModel

from distill.errors import UserError

NO_LIMIT = 2**31
# Families that always use ALiBi; others say so in their configuration.
ALIBI_TYPES = ("bloom", "mpt")


def context_limit(model: PreTrainedModel) -> int:
    """Positions the model can use; very large where its config names no limit.

    A `longrope` model changes all its angles beyond its original length, which no cache survives:
    it is limited to that length.
    """
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    for rotary in _rotary_kinds(config):
        if rotary["rope_type"] == "longrope":
            limits.append(
                rotary.get("original_max_position_embeddings")
                or getattr(config, "original_max_position_embeddings", None)
            )
    return min((n for n in limits if isinstance(n, int) and n > 0), default=NO_LIMIT)


def attention_windows(model: PreTrainedModel) -> dict[str, int | None]:
    """The kinds of attention in the model, each with its window (None: it sees all before it).

    Raises:
        UserError: a kind is neither full nor sliding-window attention, or positions depend on the
            final length; the message names the feature.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise UserError(
            f"{name} has {', '.join(sorted(unknown))} layers, whose state cannot be rolled back by "
            "length; use a model with full or sliding-window attention."
        )
    if any(rotary["rope_type"] == "dynamic" for rotary in _rotary_kinds(config)):
        raise UserError(
            f"{name} has dynamic rotary scaling, whose angles change with the length of the text "
            "while the cache keeps the old ones; use a model with fixed scaling (yarn, llama3)."
        )
    if getattr(config, "alibi", False) or config.model_type in ALIBI_TYPES:
        raise UserError(
            f"{name} tells positions by ALiBi biases, which transformers makes from a padding mask "
            "that ragged rows do not have; use a model with rotary or learned positions."
        )
    window = getattr(config, "sliding_window", None)
    if not kinds:
        used = window is not None and getattr(config, "use_sliding_window", True)
        return {"sliding_attention": window} if used else {"full_attention": None}
    windows: dict[str, int | None] = {"full_attention": None, "sliding_attention": window}
    return {kind: windows[kind] for kind in sorted(kinds)}


def layer_windows(model: PreTrainedModel) -> list[int | None]:
    """The window of every decoder layer."""
    config = model.config.get_text_config()
    windows = attention_windows(model)
    if len(windows) == 1:
        return list(windows.values()) * config.num_hidden_layers
    return [windows[kind] for kind in config.layer_types[: config.num_hidden_layers]]


def is_eager(model: PreTrainedModel) -> bool:
    """Whether attention takes an additive mask (eager) or a boolean one (SDPA).

    Raises:
        UserError: it is another implementation, which takes no mask per row.
    """
    kind = model.config.get_text_config()._attn_implementation
    if kind not in ("sdpa", "eager"):
        raise UserError(
            f"attention implementation {kind!r} takes no mask per row; load the model with "
            "attn_implementation='sdpa' (or 'eager')."
        )
    return kind == "eager"


def head_size(model: PreTrainedModel) -> int:
    """The number of rows of the output head, padding included."""
    head = model.get_output_embeddings()
    return head.weight.shape[0] if head is not None else model.config.get_text_config().vocab_size


def _rotary_kinds(config: Any) -> list[dict[str, Any]]:
    """The rotary settings: one for all layers, one per kind of attention, or none at all."""
    settings = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in settings:
        return [settings]
    return [kind for kind in settings.values() if isinstance(kind, dict) and "rope_type" in kind]
