"""The student's side of the fused losses: chunks of logits, their gradients, and the autograd node.

Shapes: T tokens, V vocabulary, d student width, C tokens per chunk.
"""

from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distill.losses.head import Head
from distill.losses.kernels import Scores

# Rows per block: their fp32 student and teacher logits, p and q stay in the cache.
BLOCK_ROWS = 32

# Ids of a block of the head's gradient: what it is made of in half precision is as large.
BLOCK_IDS = 8192


class ChunkTeacher(Protocol):
    """What the student learns from, asked for one chunk at a time."""

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        """Score ``count`` tokens from ``first`` on, overwriting their logits by the gradient.

        student_logits is [≥ count, V]: rows beyond are scratch space. Scores are [count].
        """
        ...


class Gradients(NamedTuple):
    """By hidden states [T, d], weight [V, d] and bias [V]; None where nobody asked."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def chunk_tokens(width: int, asked: int | None) -> int:
    """Tokens of a chunk: those asked for, else as many as the draft is wide, and 512 at least.

    After each chunk the head's gradient is added to in fp32, which costs the more the fewer tokens
    it is for. Of d tokens the half-precision logits of both sides take the memory of that gradient.
    """
    return max(512, width) if asked is None else asked


def padded_rows(chunk_size: int) -> int:
    """Rows of a chunk's buffer: whole blocks, so that a compiled kernel sees one shape."""
    return -(-chunk_size // BLOCK_ROWS) * BLOCK_ROWS


def empty_logits(like: Tensor, rows: int, used: int, head: Head) -> Tensor:
    """A buffer for a chunk's logits, [rows, V]; those past `used`, which no token fills, are 0."""
    logits = like.new_empty(rows, head.weight.shape[0], dtype=head.weight.dtype)
    logits[used:] = 0
    return logits


def chunked_linear_loss(
    hidden: Tensor,
    head: Head,
    teacher: ChunkTeacher,
    chunk_size: int,
    compute_dtype: torch.dtype,
    weights: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of ``teacher``'s scores of head(hidden): [T, d] → 0-d, differentiable, and its sums.

    ``weights`` [T] multiply the tokens' values and gradients, not their alpha and agreement.
    """
    if not torch.is_grad_enabled():  # the node would not know, and make all gradients
        hidden, head = hidden.detach(), head.detach()
    setting = _Setting(head, teacher, chunk_size, compute_dtype, weights)
    apply = cast(Any, _ChunkedLoss).apply  # untyped upstream
    loss, sums = apply(hidden, head.weight, head.bias, setting)
    names = ("divergence", "alpha", "agreement", "tokens")
    return loss, dict(zip(names, sums.unbind(), strict=True))


@torch.no_grad()
def token_scores(
    hidden: Tensor, head: Head, teacher: ChunkTeacher, chunk_size: int, compute_dtype: torch.dtype
) -> Scores:
    """Score each token of head(hidden): [T, d] → [T] each. No gradient, and no product for one."""
    head = head.to(compute_dtype)
    rows = padded_rows(min(chunk_size, max(len(hidden), 1)))
    logits = empty_logits(hidden, rows, min(chunk_size, len(hidden)), head)
    parts = [Scores(*hidden.new_zeros(3, 0, dtype=torch.float32))]
    for first in range(0, len(hidden), chunk_size):
        chunk = hidden[first : first + chunk_size].to(compute_dtype)
        head.logits_into(logits[: len(chunk)], chunk)
        parts.append(teacher.score_(logits, first, len(chunk)))
    return Scores(*(torch.cat(part) for part in zip(*parts, strict=True)))


class _Setting(NamedTuple):
    head: Head
    teacher: ChunkTeacher
    chunk_size: int
    compute_dtype: torch.dtype
    weights: Tensor | None


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, setting: _Setting
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            sums, gradients = _run(hidden, setting, ctx.needs_input_grad)
        ctx.save_for_backward(*gradients)
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(sums)
        return sums[0].clone(), sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A head's gradient is large: on a CPU, which can look, one that is multiplied by 1 is not.
        same = loss_gradient.device.type == "cpu" and loss_gradient.item() == 1.0
        scaled = (
            None if gradient is None else (gradient if same else gradient * loss_gradient).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *scaled, None


def _run(hidden: Tensor, setting: _Setting, needed: tuple[bool, ...]) -> tuple[Tensor, Gradients]:
    """All chunks: sums of divergence, alpha, agreement and tokens [4], and the gradients."""
    head = setting.head.detach().to(setting.compute_dtype)
    T = hidden.shape[0]
    accurate = torch.promote_types(setting.compute_dtype, torch.float32)
    gradients = _gradients(hidden, head, needed, accurate)
    rows = padded_rows(min(setting.chunk_size, max(T, 1)))
    logits = empty_logits(hidden, rows, min(setting.chunk_size, T), head)
    sums = hidden.new_zeros(4, dtype=accurate)
    for first in range(0, T, setting.chunk_size):
        chunk = hidden.detach()[first : first + setting.chunk_size].to(setting.compute_dtype)
        count = chunk.shape[0]
        head.logits_into(logits[:count], chunk)
        plain = logits.clone() if head.softcap is not None else logits
        scores = setting.teacher.score_(logits, first, count)
        if setting.weights is not None:
            share = setting.weights[first : first + count].to(accurate)
            scores = scores._replace(values=scores.values * share)
            logits[:count].mul_(share[:, None])
        sums += torch.stack([*(part.sum() for part in scores), sums.new_tensor(float(count))])
        gradient = head.logits_gradient_(logits, plain)[:count]
        _accumulate(gradients, gradient, chunk, head, first)
    return sums, gradients


def _gradients(
    hidden: Tensor, head: Head, needed: tuple[bool, ...], dtype: torch.dtype
) -> Gradients:
    """Where the sums go. The first chunk writes them; without one they are zero."""
    fill = torch.empty_like if len(hidden) else torch.zeros_like
    return Gradients(
        fill(hidden, dtype=dtype) if needed[0] else None,
        fill(head.weight, dtype=dtype) if needed[1] else None,
        torch.zeros_like(head.bias, dtype=dtype) if needed[2] and head.bias is not None else None,
    )


def _accumulate(into: Gradients, gradient: Tensor, chunk: Tensor, head: Head, first: int) -> None:
    """Add one chunk's share, gradient [C, V] by the logits, to the gradients by the inputs."""
    if into.hidden is not None:
        into.hidden[first : first + len(chunk)] = gradient @ head.weight
    if into.weight is not None:
        _add_product(into.weight, gradient, chunk, fresh=first == 0)
    if into.bias is not None:
        into.bias.add_(gradient.sum(0, dtype=into.bias.dtype))


def _add_product(total: Tensor, gradient: Tensor, chunk: Tensor, fresh: bool) -> None:
    """Add gradientᵀ · chunk [V, d] to ``total``, or write it there if that is ``fresh``.

    By blocks of ids where ``total`` has the wider dtype: no product of two dtypes is to be had, and
    a whole one of the narrower would take half of ``total`` besides.
    """
    if total.dtype == chunk.dtype:
        torch.addmm(total, gradient.t(), chunk, beta=0 if fresh else 1, out=total)
        return
    part = chunk.new_empty(min(BLOCK_IDS, len(total)), chunk.shape[1])
    for first in range(0, len(total), BLOCK_IDS):
        block = total[first : first + BLOCK_IDS]
        product = part[: len(block)]
        torch.mm(gradient[:, first : first + BLOCK_IDS].t(), chunk, out=product)
        if fresh:
            block.copy_(product)
        else:
            block.add_(product.to(total.dtype))  # at once, mixed dtypes take 4 times as long
