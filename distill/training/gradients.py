"""What happens to accumulated gradients before the optimizer sees them."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from distill.errors import UserError


def scale_and_clip(parameters: Iterable[nn.Parameter], scale: float, max_norm: float) -> float:
    """Multiply gradients by `scale`, then shrink them to a norm of `max_norm` (0: no limit).

    Returns:
        The norm of the scaled gradients before shrinking.

    Raises:
        UserError: the norm is not finite; a step would destroy the weights.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = _whole(torch.nn.utils.get_total_norm(gradients)).item() * scale
    if not torch.isfinite(torch.tensor(norm)):
        raise UserError(
            f"the gradient norm is {norm}: lower optimizer.lr, or set trainer.precision=32-true"
        )
    shrink = min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0
    torch._foreach_mul_(gradients, scale * shrink)  # pyright: ignore[reportPrivateImportUsage]
    return norm


def _whole(norm: Tensor) -> Tensor:
    """A norm over sharded gradients is itself spread over the ranks."""
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
