"""From hidden states straight to loss and gradients, without logits for the whole batch.

Shapes: T tokens, V vocabulary, d student width, C tokens per chunk.
The gradients by student hidden states, head and bias are made in the forward, chunk by chunk, in
buffers that are used again; the backward only multiplies them by the incoming scalar.
"""

from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distill.errors import UserError
from distill.losses.divergence import check_temperature
from distill.losses.head import Head
from distill.losses.kernels import Scores, TokenLoss
from distill.losses.mixture import FORWARD_KL, Mixture

# Rows per block: their fp32 student and teacher logits, p and q stay in the cache.
BLOCK_ROWS = 32

# Ids of a block of the head's gradient: what it is made of in half precision is as large.
BLOCK_IDS = 8192


class Scorer(Protocol):
    """Scores the student's logits against a signal, asked for one chunk at a time."""

    def score_(self, student_logits: Tensor, first: int, count: int) -> Scores:
        """Score ``count`` tokens from ``first`` on, overwriting their logits by the gradient.

        student_logits is [≥ count, V]: rows beyond are scratch space. Scores are [count].
        """
        ...


class Signal(Protocol):
    """What is known of the teacher's distributions at T tokens."""

    @property
    def shape(self) -> tuple[int, int | None]:
        """T, and V where the signal says how many ids there are."""
        ...

    def take(self, index: Tensor) -> "Signal":
        """The signal of some of the T tokens alone."""
        ...

    def check(self, divergence: Mixture) -> None:
        """Raise UserError for a divergence that this form of the signal cannot give."""
        ...

    def scorer(
        self, loss: TokenLoss, chunk_size: int, vocabulary_size: int, labels: Tensor | None
    ) -> Scorer:
        """Scores by ``loss`` over the first ``vocabulary_size`` ids, in chunks of so many tokens.

        labels: [T] ids of the next tokens, for a divergence that takes them.
        """
        ...


def fused_loss(
    hidden: Tensor,
    head: Head,
    signal: Signal,
    *,
    divergence: Mixture = FORWARD_KL,
    temperature: float = 1.0,
    labels: Tensor | None = None,
    chunk_size: int | None = None,
    vocabulary_size: int | None = None,
    compute_dtype: torch.dtype | None = None,
    compiled: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The SUM of a divergence over the tokens; the trainer divides by those of the global batch.

    Args:
        hidden: [T, d] states of the student; receives a gradient.
        head: of the student; weight and bias receive a gradient, summed in fp32.
        signal: of the teacher at the same T tokens: exact (``HiddenSignal``; ``ReducedSignal`` for
            a head of some ids only) or of a part (``TopK``, ``Sampled``, whose own temperature
            counts, of the metrics too).
        divergence: a weighted sum of named ones; see ``Mixture.of``.
        temperature: of both sides in the loss. The metrics are at temperature 1.
        labels: [T] ids of the next tokens, for a mixture with ``cross_entropy``; else None.
        chunk_size: tokens whose logits exist at one time; None: see ``chunk_tokens``.
        vocabulary_size: ids shared by both; rows beyond it are padding. None: the smaller head's.
        compute_dtype: of the student's matrix products; None: its head's. Softmaxes run in fp32.
        compiled: torch.compile the maths per block of rows (needs a C++ compiler on CPU; the first
            call takes half a minute).

    Returns:
        The loss (0-d, fp32; float64 of float64 products) and detached sums over the tokens:
        ``divergence``, ``alpha`` (Σ_x min(p, q)), ``agreement`` (argmaxes equal), ``tokens``. Of a
        ``TopK`` alpha is an upper bound (the tail is one bucket); of ``Sampled`` it is unbiased.

    Raises:
        UserError: tensors that cannot belong together, or a divergence the signal cannot give.
    """
    signal.check(divergence)
    check_temperature(temperature)
    divergence.check_labels(labels)
    tokens, ids = signal.shape
    if vocabulary_size is None:
        vocabulary_size = min(head.weight.shape[0], ids or head.weight.shape[0])
    head = head.sliced(vocabulary_size)
    check_hidden("student", hidden, head)
    _check_tokens(len(hidden), "signal", (tokens,))
    if labels is not None:
        _check_tokens(len(hidden), "labels", tuple(labels.shape))
    chunk = chunk_tokens(head.weight.shape[1], chunk_size)
    loss = TokenLoss(divergence, temperature, compiled)
    scorer = signal.scorer(loss, chunk, vocabulary_size, labels)
    return _chunked_loss(hidden, head, scorer, chunk, compute_dtype or head.weight.dtype)


@torch.no_grad()
def token_scores(
    hidden: Tensor, head: Head, scorer: Scorer, chunk_size: int, compute_dtype: torch.dtype
) -> Scores:
    """Score each token of head(hidden): [T, d] → [T] each. No gradient, and no product for one."""
    head = head.to(compute_dtype)
    logits = logits_buffer(hidden, head, chunk_size)
    parts = [Scores(*hidden.new_zeros(3, 0, dtype=torch.float32))]
    for first in range(0, len(hidden), chunk_size):
        chunk = hidden[first : first + chunk_size].to(compute_dtype)
        head.logits_into(logits[: len(chunk)], chunk)
        parts.append(scorer.score_(logits, first, len(chunk)))
    return Scores(*(torch.cat(part) for part in zip(*parts, strict=True)))


def chunk_tokens(width: int, asked: int | None) -> int:
    """Tokens of a chunk: those asked for, else as many as the draft is wide, and 512 at least.

    After each chunk the head's gradient is added to in fp32, which costs the more the fewer tokens
    it is for. Of d tokens the half-precision logits of both sides take the memory of that gradient.
    """
    if asked is not None and asked < 1:
        raise UserError(f"chunk_size is {asked}; use 1 or more")
    return max(512, width) if asked is None else asked


def padded_rows(chunk_size: int) -> int:
    """Rows of a chunk's buffer: whole blocks, so that a compiled kernel sees one shape."""
    return -(-chunk_size // BLOCK_ROWS) * BLOCK_ROWS


def logits_buffer(hidden: Tensor, head: Head, chunk_size: int) -> Tensor:
    """Memory for a chunk's logits, whole blocks of rows; those that no token fills are 0."""
    used = min(chunk_size, len(hidden))
    rows = padded_rows(max(used, 1))
    logits = hidden.new_empty(rows, head.weight.shape[0], dtype=head.weight.dtype)
    logits[used:] = 0
    return logits


def check_hidden(name: str, hidden: Tensor, head: Head) -> None:
    """UserError unless ``name``'s hidden states are [T, d] for a head [V, d]."""
    if hidden.ndim != 2 or hidden.shape[1] != head.weight.shape[1]:
        raise UserError(
            f"{name} hidden states are {tuple(hidden.shape)} and its head "
            f"{tuple(head.weight.shape)}; flatten them to [tokens, width] of the head's width"
        )


def _check_tokens(tokens: int, name: str, shape: tuple[int, ...]) -> None:
    if shape != (tokens,):
        raise UserError(
            f"student has {tokens} tokens and {name} is {shape}; "
            "give one value a token, of the same tokens"
        )


class Gradients(NamedTuple):
    """By hidden states [T, d], weight [V, d] and bias [V]; None where nobody asked."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def _chunked_loss(
    hidden: Tensor, head: Head, scorer: Scorer, chunk_size: int, compute_dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum of ``scorer``'s scores of head(hidden): [T, d] → 0-d, differentiable, and its sums."""
    if not torch.is_grad_enabled():  # the node would not know, and make all gradients
        hidden, head = hidden.detach(), head.detach()
    setting = _Setting(head, scorer, chunk_size, compute_dtype)
    apply = cast(Any, _ChunkedLoss).apply  # untyped upstream
    loss, sums = apply(hidden, head.weight, head.bias, setting)
    names = ("divergence", "alpha", "agreement", "tokens")
    return loss, dict(zip(names, sums.unbind(), strict=True))


class _Setting(NamedTuple):
    head: Head
    scorer: Scorer
    chunk_size: int
    compute_dtype: torch.dtype


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
    logits = logits_buffer(hidden, head, setting.chunk_size)
    sums = hidden.new_zeros(4, dtype=accurate)
    for first in range(0, T, setting.chunk_size):
        chunk = hidden.detach()[first : first + setting.chunk_size].to(setting.compute_dtype)
        count = chunk.shape[0]
        head.logits_into(logits[:count], chunk)
        plain = logits.clone() if head.softcap is not None else logits
        scores = setting.scorer.score_(logits, first, count)
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
