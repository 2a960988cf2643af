"""Which drafter runs a draft's weights."""

from typing import cast

from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.models.config import MASK_KEY
from distill.models.eagle3 import Eagle3Head, feature_layers
from distill.speculative.drafters import Drafter, ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.parallel import ParallelDrafter


def drafter_for(draft: PreTrainedModel, target: PreTrainedModel) -> Drafter:
    """A drafter of these weights beside this target.

    Raises:
        UserError: the head does not fit the target.
    """
    if not isinstance(draft, Eagle3Head):
        mask = getattr(draft.config, MASK_KEY, None)
        return ModelDrafter(draft) if mask is None else ParallelDrafter(draft, mask)
    layers = target.config.get_text_config().num_hidden_layers
    embedding = cast("Tensor", target.get_input_embeddings().weight)
    if embedding.shape[1] != draft.config.hidden_size:
        raise UserError(
            f"the head reads states of width {draft.config.hidden_size} and the target's have "
            f"{embedding.shape[1]}; use a head that was made for this target."
        )
    return Eagle3Drafter(draft, embedding, feature_layers(layers))
