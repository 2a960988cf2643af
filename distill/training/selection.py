"""Which tokens the draft can still learn: those where it is furthest behind what it could reach.

Hu et al. 2025, "AdaSPEC: Selective Knowledge Distillation for Efficient Speculative Decoders",
section 3. A reference draft, of the same size and trained before, shows what can be reached. A
token that even the reference does not fit is left out, and so is one that is learnt.
T supervised tokens of the micro-batch, d the draft's width.
"""

import math

import torch
from torch import Tensor

from distill.losses.chunked import ChunkTeacher, token_scores
from distill.losses.dense import DenseTeacher, TokenLoss
from distill.losses.fused_sparse import SparseTeacher
from distill.losses.head import Head
from distill.losses.kernels import Scores
from distill.teacher.signals import HiddenSignal, TeacherSignal


def most_behind(excess: Tensor, keep: float) -> Tensor:
    """Mask of the ⌈keep · T⌉ tokens of the largest excess: [T] → bool [T]."""
    count = math.ceil(keep * len(excess))
    mask = torch.zeros_like(excess, dtype=torch.bool)
    mask[excess.topk(count).indices] = True
    return mask


def select(
    hidden: Tensor,
    head: Head,
    reference: HiddenSignal,
    teacher: ChunkTeacher,
    *,
    keep: float,
    chunk_size: int,
    compute_dtype: torch.dtype,
) -> tuple[Tensor, Scores]:
    """The tokens to learn, bool [T], and the draft's scores of all T.

    A token's excess is the draft's loss less the reference's, both against `teacher`.
    """
    scores = token_scores(hidden, head, teacher, chunk_size, compute_dtype)
    reached = token_scores(reference.hidden, reference.head, teacher, chunk_size, compute_dtype)
    return most_behind(scores.values - reached.values, keep), scores


def chunk_teacher(
    signal: TeacherSignal, loss: TokenLoss, labels: Tensor | None, chunk_size: int
) -> ChunkTeacher:
    """What scores logits against the signal, whatever its form."""
    if isinstance(signal, HiddenSignal):
        return DenseTeacher(signal.hidden, signal.head, loss, labels, chunk_size)
    return SparseTeacher(signal, loss.divergence)
