"""The teacher's exact signal for a draft that can draw only some of the ids.

Shapes: T tokens, V all ids, v < V kept ones, D teacher width.

p is the teacher's distribution over all V ids, q the draft's over the kept ones: what p gives the
others is lost to the draft, whatever it learns. So it stays in the losses and in alpha, and p is
never normalised again over the kept ids.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.dense import DenseScorer, Whole
from distill.losses.divergence import check_unsoftened
from distill.losses.fused import BLOCK_ROWS, check_hidden, chunk_tokens, logits_buffer
from distill.losses.head import Head
from distill.losses.kernels import TokenLoss, wide
from distill.losses.mixture import Mixture


@dataclass(frozen=True)
class ReducedSignal:
    """Normed hidden states [T, D], the head's rows of the kept ids alone, and two numbers a token.

    head: [v, D] of the teacher, in the order of the draft's rows. log_total, largest: [T], of the
    teacher's logits over all V ids at temperature 1 (``summarise``); p(x) = exp(logit − log_total).
    """

    hidden: Tensor
    head: Head
    log_total: Tensor
    largest: Tensor

    @property
    def shape(self) -> tuple[int, int | None]:
        return len(self.hidden), self.head.weight.shape[0]

    def take(self, index: Tensor) -> "ReducedSignal":
        """The signal of the tokens ``index`` [N] alone, any of them as often as it stands there."""
        rows = (part.index_select(0, index) for part in (self.hidden, self.log_total, self.largest))
        hidden, log_total, largest = rows
        return ReducedSignal(hidden, self.head, log_total, largest)

    def check(self, divergence: Mixture) -> None:
        """Every divergence between distributions; a hard label may be no id of the draft's."""
        check_hidden("teacher", self.hidden, self.head)
        for name, one in (("log_total", self.log_total), ("largest", self.largest)):
            if one.shape != self.hidden.shape[:1]:
                raise UserError(
                    f"{name} is {tuple(one.shape)} for {len(self.hidden)} hidden states; make "
                    "both with summarise(hidden, head) of the same tokens"
                )
        if divergence.label_weight:
            raise UserError(
                "cross_entropy needs every label to be an id that the draft can draw; leave it "
                "out with a reduced vocabulary, or use a draft with the whole one"
            )

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> DenseScorer:
        """Raises UserError for a temperature other than 1, or a draft of fewer ids than v."""
        check_unsoftened(loss.temperature)
        kept = self.head.weight.shape[0]
        if vocabulary_size != kept:
            raise UserError(
                f"the draft scores {vocabulary_size} ids and the signal {kept}; make the signal "
                "of the teacher's head rows of exactly the draft's ids"
            )
        whole = Whole(self.log_total, self.largest)
        return DenseScorer(self.hidden, self.head, loss, labels, chunk_size, whole)


@torch.no_grad()
def summarise(hidden: Tensor, head: Head, *, chunk_size: int | None = None) -> Whole:
    """Logsumexp and maximum of ``head(hidden)`` over its ids: [T, D] → 2 × [T].

    In fp32 (float64 of a float64 head), with logits for a chunk of tokens only. ``head`` is the
    teacher's of all real ids: cut padding rows off with ``Head.sliced``.
    """
    check_hidden("teacher", hidden, head)
    chunk = chunk_tokens(head.weight.shape[1], chunk_size)
    block = BLOCK_ROWS if hidden.device.type == "cpu" else chunk
    dtype = torch.promote_types(head.weight.dtype, torch.float32)
    whole = Whole(*hidden.new_empty(2, len(hidden), dtype=dtype))
    states = hidden.to(head.weight.dtype)
    logits = logits_buffer(hidden, head, chunk)
    with torch.autocast(hidden.device.type, enabled=False):
        for first in range(0, len(hidden), chunk):
            part = states[first : first + chunk]
            head.logits_into(logits[: len(part)], part)
            for row in range(0, len(part), block):
                rows = wide(logits[row : min(row + block, len(part))])
                at = slice(first + row, first + row + len(rows))
                whole.log_total[at] = rows.logsumexp(-1)
                whole.largest[at] = rows.amax(-1)
    return whole
