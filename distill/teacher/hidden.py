"""Hidden states of a batch, the same way for target and draft.

B rows, S tokens a row.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError


def last_hidden(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """What the model's head reads: [B, S, width].

    Rows are padded on the right, so under causal attention nothing real sees padding and no mask
    is needed. Of packed rows `position_ids` [B, S] start again with every document, and by that
    transformers keeps attention inside each: it masks across every step that is not +1.
    """
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    return model.base_model(**inputs, use_cache=False).last_hidden_state


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
