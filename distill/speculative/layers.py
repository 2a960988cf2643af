"""Drafting with the target's own first layers."""

import copy
from typing import TypeVar

from torch import nn
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.speculative.cache import RaggedCache
from distill.speculative.drafters import ModelDrafter

M = TypeVar("M", bound=nn.Module)


class LayerDrafter(ModelDrafter):
    """The target's own first layers under its own final norm and head: no second weights."""

    def __init__(
        self,
        target: PreTrainedModel,
        *,
        layers: int,
        cache_type: type[RaggedCache] = RaggedCache,
    ):
        super().__init__(first_layers(target, layers), cache_type)


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """A view of the model that runs only its first `count` decoder layers.

    Shares every weight; shares nothing that a forward pass changes.
    """
    config = model.config.get_text_config()
    total = config.num_hidden_layers
    if not 1 <= count < total:
        raise UserError(f"layers must be between 1 and {total - 1} for this target; got {count}.")
    small = copy.deepcopy(config)
    small.num_hidden_layers = count
    if getattr(small, "layer_types", None):
        small.layer_types = small.layer_types[:count]
    view = _shallow(model)
    view.config = small
    inner = _shallow(model.base_model)
    inner.config = small  # pyright: ignore[reportArgumentType]
    setattr(view, model.base_model_prefix, inner)
    owner, name = _layer_list(inner, total)
    owner._modules[name] = nn.ModuleList(list(owner._modules[name])[:count])  # pyright: ignore
    return view


def _shallow(module: M) -> M:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def _layer_list(inner: nn.Module, total: int) -> tuple[nn.Module, str]:
    """Where the decoder layers are kept; a nested owner is replaced by a shallow twin."""
    for name, child in inner._modules.items():
        if isinstance(child, nn.ModuleList) and len(child) == total:
            return inner, name
    for name, child in inner._modules.items():
        if isinstance(child, nn.Module) and any(
            isinstance(c, nn.ModuleList) and len(c) == total for c in child.children()
        ):
            twin = _shallow(child)
            inner._modules[name] = twin
            return _layer_list(twin, total)
    raise UserError(
        f"{type(inner).__name__} keeps its decoder layers in no list of {total} modules."
    )
