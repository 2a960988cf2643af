"""Learning the target's states instead of its distribution: no vocabulary-sized work.

Shapes: T tokens, d student width, D teacher width.
"""

import torch
from torch import Tensor


def mismatch(student_hidden: Tensor, projection: Tensor, teacher_hidden: Tensor) -> Tensor:
    """‖W h − t‖² / ‖t‖² per token: [T, d], W [D, d], [T, D] → [T].

    Relative, so that a state of a large norm weighs no more than another. 1 where the student says
    nothing (W h = 0), 0 where it tells the target's state.
    """
    target = teacher_hidden.detach().float()
    said = torch.nn.functional.linear(student_hidden.float(), projection.float())
    scale = target.square().sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
    return (said - target).square().sum(-1) / scale
