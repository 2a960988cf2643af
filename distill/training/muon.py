"""Muon: momentum whose update is orthogonalised, for the hidden matrices of a draft.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks" (momentum, Nesterov's
look ahead, the quintic iteration and its coefficients); Liu et al. 2025, "Muon is Scalable for LLM
Training", section 2.2 (decoupled weight decay and the scale of an update).

`torch.optim.Muon` computes the same, but its products are bfloat16 on every machine; where the
hardware has no such products, one of a 192 by 512 matrix takes over 20 times as long as in float32.
Its state is ours, too, so either goes on from the other's checkpoint.

A matrix is [R, C]: R rows, C columns.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from distill.models.target import pick_dtype

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""a, b, c of one iteration x ← a·x + b·x³ + c·x⁵ on the singular values (Jordan et al. 2024)."""
ITERATIONS = 5
SMALLEST_NORM = 1e-7
ADAMW_RMS = 0.2
"""Root mean square of an AdamW update, which Muon's is scaled to (Liu et al. 2025)."""


def orthogonalise(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """About U·Vᵀ of matrix = U·S·Vᵀ, [R, C], with products in `dtype`.

    Newton–Schulz: five iterations of an odd polynomial, which leaves U and V alone and brings each
    singular value that is not tiny beside the matrix's norm into about [0.7, 1.2].
    """
    a, b, c = COEFFICIENTS
    x = matrix.to(dtype)
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x  # the smaller of the two Gram matrices
    x = x / x.norm().clamp(min=SMALLEST_NORM)  # no singular value is above 1
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(Optimizer):
    """One rate for matrices of every shape: an update's root mean square is `ADAMW_RMS` · `lr`.

    Products are bfloat16 where the device multiplies it natively, else float32. A parameter that
    FSDP2 shards is orthogonalised whole, by every rank; its momentum stays sharded.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ):
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every matrix that has a gradient. Collective where matrices are sharded."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._update(matrix, group["lr"], group["weight_decay"], group["momentum"])

    def _update(
        self, matrix: nn.Parameter, lr: float, weight_decay: float, momentum: float
    ) -> None:
        gradient = matrix.grad
        assert gradient is not None
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        average = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        direction = _orthogonal(gradient.lerp(average, momentum))  # Nesterov's look ahead
        matrix.mul_(1 - lr * weight_decay)
        # An orthogonal [R, C] matrix has the root mean square 1 / √max(R, C).
        matrix.add_(direction, alpha=-lr * ADAMW_RMS * max(matrix.shape) ** 0.5)


def _orthogonal(update: Tensor) -> Tensor:
    """`orthogonalise` of the whole matrix; of a sharded one, this rank's part of it."""
    dtype = pick_dtype("auto", update.device)
    if not isinstance(update, DTensor):
        return orthogonalise(update, dtype)
    whole = orthogonalise(update.full_tensor(), dtype)
    mesh = update.device_mesh
    replicas = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicas.redistribute(placements=update.placements)
