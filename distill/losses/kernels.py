"""From the logits of a few tokens to their losses and the gradient by student logits.

Shapes: R rows (tokens), V vocabulary. A kernel reads student and teacher logits [R, V] and
overwrites the student's with the gradient of the summed loss by them. Callers pass a few rows at a
time, so that all passes over a row hit the processor's cache.
"""

import functools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from distill.losses.closed_forms import Form, closed_form, overlap, softmax, softmax_of_shifted
from distill.losses.divergence import alpha
from distill.losses.mixture import Mixture

log = logging.getLogger(__name__)

SMALLEST_VOCABULARY = 16_384
"""Below it a whole training's losses take less time than compiling them."""


class Scores(NamedTuple):
    """Per token, [R]: loss, Σ min(p, q) at temperature 1, and ``agreement``."""

    values: Tensor
    alpha: Tensor
    agreement: Tensor


class TokenLoss(NamedTuple):
    """What is computed per token, at which temperature, and whether torch.compile makes it."""

    divergence: Mixture
    temperature: float = 1.0
    compiled: bool = False


class Kernel(Protocol):
    """Scores student logits against teacher logits [R, V], and overwrites the student's."""

    def __call__(
        self,
        student: Tensor,
        teacher: Tensor,
        temperature: float,
        labels: Tensor | None,
        log_total: Tensor | None = None,
        /,
    ) -> Scores:
        """labels: [R] or None. log_total: [R] where V is not all ids; see ``divergence``."""
        ...


def kernel_of(loss: TokenLoss) -> Kernel:
    """What scores by this loss; of equal ones the compiled kernel is the same."""
    return _compiled_kernel(loss.divergence) if loss.compiled else autograd_kernel(loss.divergence)


def autograd_kernel(divergence: Mixture) -> Kernel:
    """The definition of a divergence, differentiated by autograd."""

    def kernel(
        student: Tensor,
        teacher: Tensor,
        temperature: float,
        labels: Tensor | None,
        log_total: Tensor | None = None,
        /,
    ) -> Scores:
        s, t = wide(student), wide(teacher)
        gradient, values = gradient_and_values(
            lambda x: divergence(x, t, temperature, labels, log_total), s
        )
        scores = Scores(values, alpha(s, t, 1.0, log_total), agreement(s, t))
        student.copy_(gradient)  # last: s is the same memory when the logits are fp32
        return scores

    return kernel


def closed_kernel(
    form: Form, definition: Mixture, compiler: Callable[[Callable[..., Any]], Any]
) -> Kernel:
    """The kernel of ``form``, whose step over rows ``compiler`` has made.

    If a loss does not come out finite, these rows are scored by the ``definition`` in float64,
    which is slower and holds where probabilities underflow or are zero.
    """
    of_rows = compiler(partial(_score_rows, form))

    def kernel(
        student: Tensor,
        teacher: Tensor,
        temperature: float,
        labels: Tensor | None,
        log_total: Tensor | None = None,
        /,
    ) -> Scores:
        gradient, found = of_rows(student, teacher, temperature, log_total)
        q_total, p_total, p_mass, kept, nearest, sums = found
        mass = torch.ones_like(p_total) if p_mass is None else p_mass
        values = form.values((q_total / p_total).log(), mass, *sums).squeeze(-1)
        if not bool(values.isfinite().all()):
            exact = student.double()
            by_definition = autograd_kernel(definition)
            scores = by_definition(exact, teacher.double(), temperature, labels, log_total)
            student.copy_(exact)
            return Scores(*(part.to(values.dtype) for part in scores))
        student.copy_(gradient)
        return Scores(values.clamp_min(0.0), kept.squeeze(-1), (nearest == 0).squeeze(-1).float())

    return kernel


def gradient_and_values(
    values_of: Callable[[Tensor], Tensor], logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient [R, V] of Σ values_of(logits), and those values [R]."""

    def summed(x: Tensor) -> tuple[Tensor, Tensor]:
        values = values_of(x)
        return values.sum(), values

    grad = cast(Callable[..., Any], torch.func.grad)  # untyped upstream
    return grad(summed, has_aux=True)(logits)


def agreement(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """1 where a token is the likeliest of both (of equals any one), else 0: [R, V] ×2 → [R].

    So exactly when their distances below the two maxima add up to 0: cheaper than two argmaxes.
    """
    s, t = (side - side.amax(-1, keepdim=True) for side in (student_logits, teacher_logits))
    return ((s + t).amax(-1) == 0).float()


def wide(logits: Tensor) -> Tensor:
    """fp32, or float64 if it already is."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def worth_compiling(device: torch.device, vocabulary_size: int) -> bool:
    """Whether what runs over so many ids should be compiled: it is large, and that works here."""
    return vocabulary_size >= SMALLEST_VOCABULARY and compiles(device.type)


@functools.cache
def compiles(device_type: str) -> bool:
    """Whether torch.compile works for this kind of device: tried once on a trivial function.

    On a CPU it needs a C++ compiler, on CUDA Triton; a machine without them runs eagerly.
    """
    compiler = cast(Callable[..., Any], cast(Any, torch).compile)  # untyped upstream
    try:
        compiler(_trivial)(torch.zeros(8, device=device_type))
    except (RuntimeError, OSError) as problem:  # of tracing and compilers; of their cache
        reason = str(problem).splitlines()[0]
        log.info("torch.compile does not work here, the loss runs without: %s", reason)
        return False
    return True


def compile_over_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled for any number of rows of the tensors [R, …] that it is called with.

    Anew for every divergence, temperature, dtype and vocabulary: after 8 of them, by default, torch
    would run the function uncompiled from then on. Of a number of rows that it knows, the compiler
    makes one loop per row only if a row is at most 300 times longer, else one per pass over all.
    """
    compiler = cast(Any, torch)  # untyped upstream
    limits = compiler._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 64)
    of_shape = compiler.compile(function, dynamic=False)

    def call(*args: Any) -> Any:
        for tensor in filter(torch.is_tensor, args):
            compiler._dynamo.mark_dynamic(tensor, 0)
        return of_shape(*args)

    return call


@functools.cache
def _compiled_kernel(divergence: Mixture) -> Kernel:
    form = closed_form(divergence)
    if form is None:
        return compile_over_rows(autograd_kernel(divergence))
    return closed_kernel(form, divergence, compile_over_rows)


def _score_rows(
    form: Form, student: Tensor, teacher: Tensor, temperature: float, log_total: Tensor | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """The gradient by the student's logits, and sums over rows, [R, 1] each."""
    s, t = wide(student), wide(teacher)
    plain = q, p = softmax(s), softmax(t, log_total)
    nearest = (q.logits + p.logits).amax(-1, keepdim=True)
    if temperature != 1.0:
        q, p = (softmax_of_shifted(side.logits / temperature) for side in plain)
    gradient, sums = form.rows(q, p)
    kept = overlap(*plain)
    scaled = gradient if temperature == 1.0 else gradient / temperature
    return scaled.to(student.dtype), (q.total, p.total, p.mass, kept, nearest, sums)


def _trivial(x: Tensor) -> Tensor:
    return x.exp() + 1
