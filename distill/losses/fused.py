"""From hidden states straight to loss and gradients, without logits for the whole batch.

Shapes: T tokens, V vocabulary, d student width, D teacher width, C tokens per chunk.
The gradients by student hidden states, head and bias are made in the forward, chunk by chunk, in
buffers that are used again; the backward only multiplies them by the incoming scalar.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.checks import check_chunk, check_hidden, check_tokens
from distill.losses.chunked import chunk_tokens, chunked_linear_loss
from distill.losses.dense import DenseTeacher, TokenLoss
from distill.losses.divergence import check_temperature, forward_kl
from distill.losses.head import Head
from distill.losses.kernels import Divergence
from distill.losses.mixture import as_divergence, check_labels


def fused_linear_loss(
    student_hidden: Tensor,
    student_head: Tensor | Head,
    teacher_hidden: Tensor,
    teacher_head: Tensor | Head,
    *,
    divergence: str | Mapping[str, float] | Divergence = forward_kl,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    labels: Tensor | None = None,
    weights: Tensor | None = None,
    chunk_size: int | None = None,
    vocabulary_size: int | None = None,
    student_bias: Tensor | None = None,
    teacher_bias: Tensor | None = None,
    compute_dtype: torch.dtype | None = None,
    compiled: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The SUM of a divergence over the unmasked tokens.

    The caller divides by the supervised tokens of the global batch (``reduce.gradient_scale``).

    Args:
        student_hidden: [T, d]; receives a gradient.
        student_head: [V, d] or a ``Head``; weight and bias receive a gradient, summed in fp32.
        teacher_hidden: [T, D], no gradient.
        teacher_head: [V, D] or a ``Head``, no gradient.
        divergence: a name or ``{name: weight}`` (see ``as_divergence``), a per-token function of
            ``distill.losses``, a ``partial`` of one, or a ``Mixture``.
        temperature: of both sides in the loss. The metrics are at temperature 1.
        mask: [T] bool, true where a token counts; the others cost nothing. None: all count.
        labels: [T] ids of the next tokens, for a mixture with ``cross_entropy``; else None.
        weights: [T] factors of the tokens' loss, no gradient; alpha and agreement stay plain. What
            is to be left out wants a mask: 0 times an infinite loss is nan.
        chunk_size: tokens whose logits exist at one time; None: see ``chunked.chunk_tokens``.
        vocabulary_size: ids shared by both; rows beyond it are padding. None: the smaller head's.
        student_bias: [V], in place of ``Head(bias=)``.
        teacher_bias: [V], likewise.
        compute_dtype: of the student's matrix products; None: its head's. Softmaxes run in fp32.
        compiled: torch.compile the maths per block of rows (needs a C++ compiler on CPU; the first
            call takes half a minute).

    Returns:
        The loss (0-d, fp32; float64 of float64 products) and detached sums over the unmasked
        tokens: ``divergence``, ``alpha`` (Σ_x min(p, q)), ``agreement`` (argmaxes equal),
        ``tokens``.

    Raises:
        UserError: tensors that cannot belong together.
    """
    student = _head(student_head, student_bias)
    teacher = _head(teacher_head, teacher_bias)
    if vocabulary_size is None:
        vocabulary_size = min(student.weight.shape[0], teacher.weight.shape[0])
    student, teacher = student.sliced(vocabulary_size), teacher.sliced(vocabulary_size)
    function = as_divergence(divergence)
    chunk = chunk_tokens(student.weight.shape[1], chunk_size)
    check_chunk(chunk)
    check_hidden("student", student_hidden, student)
    check_hidden("teacher", teacher_hidden, teacher)
    check_temperature(temperature)
    tokens = len(student_hidden)
    check_tokens(tokens, teacher=teacher_hidden[:, 0], mask=mask, labels=labels, weights=weights)
    check_labels(function, labels)
    if mask is not None:
        kept = mask.nonzero().squeeze(1)
        student_hidden = student_hidden.index_select(0, kept)
        teacher_hidden = teacher_hidden.index_select(0, kept)
        labels = None if labels is None else labels.index_select(0, kept)
        weights = None if weights is None else weights.index_select(0, kept)
    loss = TokenLoss(function, temperature, compiled)
    source = DenseTeacher(teacher_hidden, teacher, loss, labels, chunk)
    dtype = compute_dtype or student.weight.dtype
    return chunked_linear_loss(student_hidden, student, source, chunk, dtype, weights)


def _head(head: Tensor | Head, bias: Tensor | None) -> Head:
    if isinstance(head, Tensor):
        return Head(head, bias)
    if bias is not None and head.bias is not None:
        raise UserError("a bias is given twice: in the Head and as a keyword; drop one")
    return head if bias is None else replace(head, bias=bias)
