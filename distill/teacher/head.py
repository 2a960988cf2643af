"""A causal model's last hidden states and the head that reads them, alike for target and draft.

B rows, S tokens a row.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.losses.head import Head


def last_hidden(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """What the model's head reads: [B, S, width].

    Rows are padded on the right, so under causal attention nothing real sees padding and no mask
    is needed. Of packed rows `position_ids` [B, S] start again with every document, and by that
    transformers keeps attention inside each: it masks across every step that is not +1.
    """
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    return model.base_model(**inputs, use_cache=False).last_hidden_state


def head_of(model: PreTrainedModel) -> Head:
    """The output head of a causal model: weight, bias, logit scale and soft cap.

    The tensors are the model's own, not copies. `check_head` proves the result against the model.
    """
    projection = model.get_output_embeddings()
    if projection is None:
        raise UserError(
            f"{type(model).__name__} has no output embedding; load it as a causal language model"
        )
    return Head(
        weight=projection.weight,  # pyright: ignore[reportArgumentType]
        bias=getattr(projection, "bias", None),
        scale=_scale(model),
        softcap=_softcap(model),
    )


def check_head(model: PreTrainedModel) -> None:
    """Compare `head_of` on the inner model's states with the model's own logits, on three ids.

    Raises:
        UserError: the family treats its logits in a way `head_of` does not know. Training on such
            logits would distil another distribution than the one that is served.
    """
    probe = torch.arange(3, device=model.device)[None]
    was_training = model.training
    model.eval()
    with torch.no_grad():
        theirs = model(input_ids=probe, use_cache=False).logits[0].float()
        hidden = model.base_model(input_ids=probe, use_cache=False).last_hidden_state[0]
        ours = head_of(model).logits(hidden).float().to(theirs.device)
    model.train(was_training)
    # Half precision rounds a scaled and an unscaled logit differently; a forgotten scale is far
    # larger.
    tolerance = 8 * torch.finfo(hidden.dtype).eps * theirs.abs().max().item() + 1e-4
    if (ours - theirs).abs().max().item() > tolerance:
        raise UserError(
            f"the logits of {type(model).__name__} ({model.config.model_type}) are not its output "
            "head applied to its last hidden state; teach distill.teacher.head this family"
        )


def check_packing(model: PreTrainedModel) -> None:
    """Prove on two documents of three ids that the second does not see the first.

    Raises:
        UserError: the family carries something from one document into the next.
    """
    ids = torch.arange(6, device=model.device)[None]
    places = torch.arange(3, device=model.device).repeat(2)[None]
    other = torch.cat([ids[:, 1:3], ids[:, :1], ids[:, 3:]], dim=1)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        first, second = (
            last_hidden(model, {"input_ids": x, "position_ids": places})[:, 3:]
            for x in (ids, other)
        )
    model.train(was_training)
    if not torch.equal(first, second):
        raise UserError(
            f"{type(model).__name__} does not keep packed documents apart: set data.packing=false"
        )


def _scale(model: PreTrainedModel) -> float:
    config = model.config.get_text_config()
    family = config.model_type
    if family.startswith("cohere"):
        return _number(config, "logit_scale", 1.0)
    if family.startswith("granite"):
        return 1.0 / _number(config, "logits_scaling", 1.0)
    if family.startswith("hyperclovax"):
        return _number(config, "logits_scaling", 1.0)
    return _number(config, "lm_head_multiplier", 1.0)  # Falcon-H1


def _softcap(model: PreTrainedModel) -> float | None:
    config = model.config.get_text_config()
    for name in ("final_logit_softcapping", "logits_soft_cap"):  # Gemma 2 and later; RecurrentGemma
        if getattr(config, name, None) is not None:
            return float(getattr(config, name))
    return None


def _number(config: object, name: str, default: float) -> float:
    value = getattr(config, name, None)
    return default if value is None else float(value)
