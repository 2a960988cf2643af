"""What the draft minimises, whatever the form of the teacher's signal.

T supervised tokens of the micro-batch, d the draft's width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.divergence import check_temperature
from distill.losses.fused import Signal, fused_loss
from distill.losses.head import Head
from distill.losses.kernels import worth_compiling
from distill.losses.mixture import Mixture
from distill.teacher.codecs import TargetSignal


@dataclass(frozen=True)
class Objective:
    """A divergence and how it is computed.

    divergence: a name, or {name: weight}. beta is jsd's, eta lk's. temperature: of both sides.
    chunk_size: tokens whose logits exist at one time; None: by the draft's width.
    compiled: torch.compile the loss; None: where that works and the vocabulary is large enough for
    it to pay.
    """

    divergence: str | Mapping[str, float] = "forward_kl"
    beta: float = 0.5
    eta: float = 3.0
    temperature: float = 1.0
    chunk_size: int | None = None
    compiled: bool | None = None

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        _ = self.mixture  # an unknown name or weight is refused here
        if self.chunk_size is not None and self.chunk_size < 1:
            raise UserError(f"objective.chunk_size is {self.chunk_size}; use 1 or more, or null")

    @property
    def mixture(self) -> Mixture:
        """The divergence as what the losses take: a weighted sum, of one alone if it is a name."""
        named = self.divergence
        weights = {named: 1.0} if isinstance(named, str) else named
        return Mixture.of(weights, beta=self.beta, eta=self.eta)

    def check(self, signal: TargetSignal) -> None:
        """Refuse what cannot be minimised with this form of the signal.

        Raises:
            UserError: naming the remedy.
        """
        signal.check()
        signal.check_objective(self.mixture, self.temperature)

    def __call__(
        self,
        hidden: Tensor,
        head: Head,
        signal: Signal,
        labels: Tensor,
        *,
        vocabulary_size: int,
        compute_dtype: torch.dtype | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM and metric sums of the draft's states [T, d]; labels [T] are the next tokens."""
        divergence, compiled = self.mixture, self.compiled
        if compiled is None:
            compiled = worth_compiling(hidden.device, vocabulary_size)
        return fused_loss(
            hidden,
            head,
            signal,
            divergence=divergence,
            temperature=self.temperature,
            labels=labels if divergence.label_weight else None,
            chunk_size=self.chunk_size,
            vocabulary_size=vocabulary_size,
            compute_dtype=compute_dtype,
            compiled=compiled,
        )
