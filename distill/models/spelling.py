"""The config.json of a draft, so that engines of other ages read the same model from it.

transformers 5 writes the rotary settings as `rope_parameters` alone. What reads the older keys
(transformers 4, and servers built on it) finds none there and takes a base of 10,000.
"""

from typing import Any

NOT_THE_DRAFTS = ("quantization_config", "auto_map")
"""Of the target's files: the draft's weights are not quantised, and no code comes with them."""


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """The settings in both spellings, without what holds of the target's own files only.

    Of layers with settings of their own by kind (Gemma 3), those of `full_attention` are the older
    keys' and those of `sliding_attention` are `rope_local_base_freq`.
    """
    kept = {key: value for key, value in config.items() if key not in NOT_THE_DRAFTS}
    rope = kept.get("rope_parameters")
    if not rope:
        return kept
    if "full_attention" in rope:
        sliding = rope.get("sliding_attention") or {}
        if "rope_theta" in sliding:
            kept["rope_local_base_freq"] = sliding["rope_theta"]
        rope = rope["full_attention"]
    if "rope_theta" not in rope:
        return kept
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    if "partial_rotary_factor" in scaling:
        kept["partial_rotary_factor"] = scaling.pop("partial_rotary_factor")
    plain = scaling.get("rope_type", "default") == "default"
    return kept | {"rope_theta": rope["rope_theta"], "rope_scaling": None if plain else scaling}
