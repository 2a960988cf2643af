"""``forward_kl`` and its gradient without a compiler, in fewer passes over a row than autograd.

Shapes: R rows (tokens), V vocabulary. See ``kernels`` for what a kernel does.
"""

import torch
from torch import Tensor

from distill.losses.divergence import forward_kl
from distill.losses.kernels import Scores


class ForwardKLKernel:
    """In buffers used again."""

    def __init__(self, rows: int, vocabulary_size: int, dtype: torch.dtype):
        accurate = torch.promote_types(dtype, torch.float32)
        self._buffers = torch.empty(5, rows, vocabulary_size, dtype=accurate)

    def __call__(
        self, student: Tensor, teacher: Tensor, temperature: float, labels: Tensor | None
    ) -> Scores:
        s, t, p, q, scratch = (buffer[: student.shape[0]] for buffer in self._buffers)
        for buffer, logits in ((s, student), (t, teacher)):
            buffer.copy_(logits).sub_(logits.amax(-1, keepdim=True))
        torch.softmax(s, -1, out=q)
        torch.softmax(t, -1, out=p)
        agree = (torch.add(s, t, out=scratch).amax(-1) == 0).float()
        overlap = torch.minimum(p, q, out=scratch).sum(-1)
        if temperature != 1.0:
            torch.softmax(s.div_(temperature), -1, out=q)
            torch.softmax(t.div_(temperature), -1, out=p)
        # log Z of a row, read off its largest token: log p(max) = 0 − log Z.
        log_z_ratio = p.amax(-1).log() - q.amax(-1).log()
        values = torch.sub(t, s, out=scratch).mul_(p).sum(-1) + log_z_ratio
        if not bool(values.isfinite().all()):  # a logit of −inf made 0 · inf above
            values = forward_kl(s, t)
        student.copy_(q.sub_(p) if temperature == 1.0 else q.sub_(p).div_(temperature))
        return Scores(values.clamp_min_(0.0), overlap, agree)
