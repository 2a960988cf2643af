"""Hidden states of a batch, the same way for target and draft.

B rows, S tokens a row.
"""

from torch import Tensor
from transformers import PreTrainedModel


def last_hidden(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """What the model's head reads: [B, S, width].

    Rows are padded on the right, so under causal attention nothing real sees padding and no mask
    is needed. Of packed rows `position_ids` [B, S] start again with every document, and by that
    transformers keeps attention inside each: it masks across every step that is not +1.
    """
    inputs = {name: batch[name] for name in ("input_ids", "position_ids") if name in batch}
    return model.base_model(**inputs, use_cache=False).last_hidden_state
