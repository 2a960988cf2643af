"""What the draft minimises, whatever the form of the teacher's signal.

T supervised tokens of the micro-batch, d the draft's width, D the target's, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.chunked import chunk_tokens
from distill.losses.compiler import worth_compiling
from distill.losses.dense import TokenLoss
from distill.losses.divergence import check_temperature
from distill.losses.entropy import head_entropy, sparse_entropy
from distill.losses.fused import fused_linear_loss
from distill.losses.fused_sparse import fused_sparse_loss
from distill.losses.head import Head
from distill.losses.kernels import Divergence
from distill.losses.mixture import as_divergence, takes_labels
from distill.losses.sparse import check_sampled, check_unlabelled
from distill.teacher.codecs import Hidden, Live, Samples
from distill.teacher.signals import HiddenSignal, TeacherSignal
from distill.training.selection import chunk_teacher, select

WEIGHTINGS = ("none", "entropy", "learnable")


@dataclass(frozen=True)
class Objective:
    """A divergence, its tokens' weights and what comes before it.

    divergence: a name, or {name: weight}. beta is jsd's, eta lk's. temperature: of both sides.
    chunk_size: tokens whose logits exist at one time; None: by the draft's width.
    compiled: torch.compile the loss; None: where that works and the vocabulary is large enough for
    it to pay.
    weighting: `entropy` multiplies a token's loss by exp(entropy_slope · H(p)): below 0 the draft
    learns first what the target is sure of, above 0 what it hesitates over.
    `learnable` learns only the share `keep` of a micro-batch's tokens, those where the draft is
    furthest behind the draft in the folder `reference` (see `distill.training.selection`).
    hidden_match: share of the budget at its start in which the draft's states, through a learned
    linear map, regress the target's instead.
    """

    divergence: str | Mapping[str, float] = "forward_kl"
    beta: float = 0.5
    eta: float = 3.0
    temperature: float = 1.0
    chunk_size: int | None = None
    compiled: bool | None = None
    weighting: str = "none"
    entropy_slope: float = -0.5
    reference: str | None = None
    keep: float = 0.4
    hidden_match: float = 0.0

    @property
    def function(self) -> Divergence:
        return as_divergence(self.divergence, beta=self.beta, eta=self.eta)

    def check(self, codec: object) -> None:
        """Refuse what cannot be minimised with this form of the signal.

        Raises:
            UserError: naming the remedy.
        """
        check_temperature(self.temperature)
        function = self.function  # an unknown name or weight is refused here
        if self.weighting not in WEIGHTINGS:
            raise UserError(
                f"objective.weighting is {self.weighting}; use one of {', '.join(WEIGHTINGS)}"
            )
        if self.chunk_size is not None and self.chunk_size < 1:
            raise UserError(f"objective.chunk_size is {self.chunk_size}; use 1 or more, or null")
        self._check_learnable()
        if not 0.0 <= self.hidden_match < 1.0:
            raise UserError(f"objective.hidden_match is {self.hidden_match}; use 0 <= share < 1")
        if isinstance(codec, Samples):
            check_sampled(function)
        if not isinstance(codec, Live | Hidden):
            self._check_sparse(codec)

    def __call__(
        self,
        hidden: Tensor,
        head: Head,
        signal: TeacherSignal,
        labels: Tensor,
        *,
        vocabulary_size: int,
        compute_dtype: torch.dtype | None,
        reference: HiddenSignal | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM and metric sums of the draft's states [T, d]; labels [T] are the next tokens.

        With a weighting the sums have a `weight`, by which their divergence is to be divided.
        reference: the reference draft's states at the same tokens, for `learnable`.
        """
        known = labels if takes_labels(self.function) else None
        chunk = chunk_tokens(head.weight.shape[1], self.chunk_size)
        fused = partial(self._fused, hidden, head, signal, known, vocabulary_size, compute_dtype)
        if self.weighting == "entropy":
            weights = self.weights(signal, chunk)
            loss, sums = fused(weights=weights)
            return loss, sums | {"weight": weights.sum()}
        if self.weighting == "none":
            return fused()
        assert reference is not None  # the trainer has one whenever this is the weighting
        mask, scores = select(
            hidden.detach(),
            head.sliced(vocabulary_size).detach(),
            reference,
            chunk_teacher(signal, self._token_loss(hidden, vocabulary_size), known, chunk),
            keep=self.keep,
            chunk_size=chunk,
            compute_dtype=compute_dtype or head.weight.dtype,
        )
        loss, sums = fused(mask=mask)
        # What is left out costs nothing and still counts in how good the draft is.
        found = {"alpha": scores.alpha.sum(), "agreement": scores.agreement.sum()}
        tokens = torch.full_like(sums["tokens"], len(mask))
        return loss, sums | found | {"weight": sums["tokens"], "tokens": tokens}

    def _token_loss(self, hidden: Tensor, vocabulary_size: int) -> TokenLoss:
        compiled = self._compiled(hidden, vocabulary_size)
        return TokenLoss(self.function, self.temperature, compiled)

    def _compiled(self, hidden: Tensor, vocabulary_size: int) -> bool:
        if self.compiled is None:
            return worth_compiling(hidden.device, vocabulary_size)
        return self.compiled

    def _fused(
        self,
        hidden: Tensor,
        head: Head,
        signal: TeacherSignal,
        labels: Tensor | None,
        vocabulary_size: int,
        compute_dtype: torch.dtype | None,
        *,
        weights: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if isinstance(signal, HiddenSignal):
            return fused_linear_loss(
                hidden,
                head,
                signal.hidden,
                signal.head,
                divergence=self.function,
                temperature=self.temperature,
                mask=mask,
                labels=labels,
                weights=weights,
                chunk_size=self.chunk_size,
                vocabulary_size=vocabulary_size,
                compute_dtype=compute_dtype,
                compiled=self._compiled(hidden, vocabulary_size),
            )
        return fused_sparse_loss(
            hidden,
            head,
            signal,
            divergence=self.function,
            mask=mask,
            weights=weights,
            chunk_size=self.chunk_size,
            vocabulary_size=vocabulary_size,
            compute_dtype=compute_dtype,
        )

    def weights(self, signal: TeacherSignal, chunk_size: int) -> Tensor:
        """exp(entropy_slope · H(p)), [T]."""
        if isinstance(signal, HiddenSignal):
            nats = head_entropy(signal.hidden, signal.head, self.temperature, chunk_size)
        else:
            nats = sparse_entropy(signal)
        return torch.exp(self.entropy_slope * nats)

    def _check_learnable(self) -> None:
        if not 0.0 < self.keep <= 1.0:
            raise UserError(f"objective.keep is {self.keep}; use 0 < share <= 1")
        if self.weighting == "learnable" and self.reference is None:
            raise UserError(
                "objective.weighting=learnable needs a draft to compare with: train one without, "
                "then give its folder as objective.reference"
            )

    def _check_sparse(self, codec: object) -> None:
        if self.hidden_match:
            raise UserError(
                "objective.hidden_match needs the target's hidden states: use signal=hidden or "
                "signal=live"
            )
        check_unlabelled(self.function)
        if vars(codec)["temperature"] != self.temperature:
            raise UserError(
                f"signal.temperature is {vars(codec)['temperature']} and objective.temperature "
                f"{self.temperature}: a sparse signal cannot be softened later, make them equal"
            )
