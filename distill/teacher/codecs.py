"""Signal codecs: in which form the target's distribution is kept, one class per form (`signal=`).

T tokens, D the target's width, V vocabulary, K kept tokens, N draws, E entries of all T tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from distill.errors import UserError
from distill.losses.dense import HiddenSignal
from distill.losses.fused import Signal
from distill.losses.head import Head
from distill.losses.mixture import Mixture
from distill.losses.sparse import (
    Sampled,
    TopK,
    check_sampled,
    check_unlabelled,
    draw,
    keep_top_k,
)

Columns = dict[str, Tensor]
"""What a shard holds of its tokens. Joining two shards is joining each tensor along its first axis.
"""
CHUNK = 256
"""Tokens whose logits exist at one time."""
FLOAT_BYTES = {"float16": 2, "float32": 4}
ID_BYTES = 4


class TargetSignal(Protocol):
    """What the group `signal` names: in which form the draft is told the target's distribution.

    cached: whether it is kept on disk; else the target runs beside the draft.
    """

    cached: ClassVar[bool]

    def check(self) -> None:
        """Raise UserError for arguments that cannot work."""
        ...

    def check_objective(self, divergence: Mixture, temperature: float) -> None:
        """Raise UserError for a loss that cannot be made of this form of the distribution."""
        ...


class Codec(TargetSignal, Protocol):
    """The target's distributions as columns and back."""

    @property
    def draws(self) -> int:
        """Random draws a token; 0: the same distribution has the same columns."""
        ...

    def bytes_per_token(self, head: Head) -> int:
        """Bytes of a token on disk: the most that one takes, where tokens differ in size."""
        ...

    def encode(self, hidden: Tensor, head: Head, generator: torch.Generator) -> Columns:
        """Columns of the tokens whose head reads `hidden` [T, D]."""
        ...

    def take(self, columns: Columns, index: Tensor) -> Columns:
        """The tokens at `index` [T] of one shard's columns, as columns with T rows each."""
        ...

    def signal(self, rows: Columns, head: Head) -> Signal:
        """The signal that the loss is given, made from taken rows."""
        ...


@dataclass(frozen=True)
class Live:
    """No codec: the target runs beside the draft."""

    cached: ClassVar[bool] = False

    def check(self) -> None:
        """Nothing can be wrong."""

    def check_objective(self, divergence: Mixture, temperature: float) -> None:
        """Every loss can be made of the whole distribution."""


@dataclass(frozen=True)
class Hidden:
    """The head's input in the target's dtype: exact. The head is applied again while training."""

    shard_tokens: int = 32768
    cached: ClassVar[bool] = True

    @property
    def draws(self) -> int:
        return 0

    def check(self) -> None:
        _at_least_one("shard_tokens", self.shard_tokens)

    def check_objective(self, divergence: Mixture, temperature: float) -> None:
        """Every loss can be made of the whole distribution."""

    def bytes_per_token(self, head: Head) -> int:
        return head.weight.shape[1] * head.weight.element_size()

    def encode(self, hidden: Tensor, head: Head, generator: torch.Generator) -> Columns:
        return {"hidden": hidden}

    def take(self, columns: Columns, index: Tensor) -> Columns:
        return _rows(columns, index)

    def signal(self, rows: Columns, head: Head) -> Signal:
        return HiddenSignal(rows["hidden"], head)


@dataclass(frozen=True)
class TopKTail:
    """The k likeliest tokens and the mass of the rest, at the objective's temperature.

    A lower bound of the divergence: what the draft does inside the tail is not seen.
    """

    k: int = 32
    temperature: float = 1.0
    dtype: str = "float16"
    shard_tokens: int = 32768
    cached: ClassVar[bool] = True

    @property
    def draws(self) -> int:
        return 0

    def check(self) -> None:
        _at_least_one("k", self.k)
        _at_least_one("shard_tokens", self.shard_tokens)
        _check_float(self.dtype)

    def check_objective(self, divergence: Mixture, temperature: float) -> None:
        """No hard labels, and the temperature at which the signal is kept."""
        check_unlabelled(divergence)
        _check_same_temperature(self.temperature, temperature)

    def bytes_per_token(self, head: Head) -> int:
        size = FLOAT_BYTES[self.dtype]
        return self._kept(head) * (ID_BYTES + size) + size

    def encode(self, hidden: Tensor, head: Head, generator: torch.Generator) -> Columns:
        dtype = getattr(torch, self.dtype)
        parts = []
        for part in hidden.split(CHUNK):
            kept = keep_top_k(head.logits(part), self._kept(head), self.temperature)
            parts.append(
                {
                    "ids": kept.ids.int(),
                    "log_probs": kept.log_probs.to(dtype),
                    "log_tail": kept.log_tail.to(dtype),
                }
            )
        return join(parts)

    def take(self, columns: Columns, index: Tensor) -> Columns:
        return _rows(columns, index)

    def signal(self, rows: Columns, head: Head) -> Signal:
        return TopK(rows["ids"], rows["log_probs"], rows["log_tail"], self.temperature)

    def _kept(self, head: Head) -> int:
        return min(self.k, head.weight.shape[0])


@dataclass(frozen=True)
class Samples:
    """Random draws, unbiased for forward KL: the distinct tokens drawn, with their weights.

    proposal_temperature: above 1 draws rare tokens more often and weighs them less; see `draw`.
    """

    draws: int = 50
    proposal_temperature: float = 1.0
    temperature: float = 1.0
    dtype: str = "float16"
    shard_tokens: int = 32768
    cached: ClassVar[bool] = True

    def check(self) -> None:
        _at_least_one("draws", self.draws)
        _at_least_one("shard_tokens", self.shard_tokens)
        if not self.proposal_temperature > 0:
            raise UserError(
                f"signal.proposal_temperature is {self.proposal_temperature}; it must be above 0"
            )
        _check_float(self.dtype)

    def check_objective(self, divergence: Mixture, temperature: float) -> None:
        """Forward KL alone, and the temperature at which the signal is kept."""
        check_sampled(divergence)
        check_unlabelled(divergence)
        _check_same_temperature(self.temperature, temperature)

    def bytes_per_token(self, head: Head) -> int:
        return min(self.draws, head.weight.shape[0]) * (ID_BYTES + 2 * FLOAT_BYTES[self.dtype]) + 4

    def encode(self, hidden: Tensor, head: Head, generator: torch.Generator) -> Columns:
        return join([self._entries(part, head, generator) for part in hidden.split(CHUNK)])

    def _entries(self, hidden: Tensor, head: Head, generator: torch.Generator) -> Columns:
        """Columns ids, weights, log_probs [E], token after token, and each token's counts [T]."""
        drawn = draw(
            head.logits(hidden),
            self.draws,
            self.temperature,
            generator,
            proposal_temperature=self.proposal_temperature,
        )
        ids, order = drawn.ids.sort(-1)
        first = torch.ones_like(ids, dtype=torch.bool)
        first[:, 1:] = ids[:, 1:] != ids[:, :-1]
        slot = first.cumsum(-1) - 1
        weights = torch.zeros_like(drawn.weights).scatter_add_(
            -1, slot, drawn.weights.gather(-1, order)
        )
        counts = first.sum(-1)
        dtype = getattr(torch, self.dtype)
        return {
            "ids": ids[first].int(),
            "weights": weights[_slots(counts, self.draws)].to(dtype),
            "log_probs": drawn.log_probs.gather(-1, order)[first].to(dtype),
            "counts": counts.int(),
        }

    def take(self, columns: Columns, index: Tensor) -> Columns:
        """Padded to `draws` slots: weight 0, log p −inf."""
        counts = columns["counts"].long()
        begins = counts.cumsum(0) - counts
        kept = _slots(counts[index], self.draws)
        slots = torch.arange(self.draws, device=index.device)
        entry = (begins[index, None] + slots).masked_fill(~kept, 0)
        return {
            "ids": columns["ids"][entry],
            "weights": columns["weights"][entry].masked_fill(~kept, 0.0),
            "log_probs": columns["log_probs"][entry].masked_fill(~kept, -torch.inf),
        }

    def signal(self, rows: Columns, head: Head) -> Signal:
        return Sampled(rows["ids"], rows["weights"], rows["log_probs"], self.temperature)


CODECS: dict[str, type[Codec]] = {"hidden": Hidden, "top_k": TopKTail, "sampled": Samples}
"""By their names in the group `signal`."""


def join(parts: list[Columns]) -> Columns:
    """One part's tokens after the other's."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _rows(columns: Columns, index: Tensor) -> Columns:
    """The rows of the tokens at `index`, of columns with one row a token."""
    return {name: column[index] for name, column in columns.items()}


def _slots(counts: Tensor, width: int) -> Tensor:
    """[T] → bool [T, width]: true in the first counts[t] slots of t."""
    return torch.arange(width, device=counts.device) < counts[:, None]


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"signal.{name} is {value}; keep at least 1")


def _check_same_temperature(of_signal: float, of_objective: float) -> None:
    if of_signal != of_objective:
        raise UserError(
            f"signal.temperature is {of_signal} and objective.temperature {of_objective}: a sparse "
            "signal cannot be softened later, make them equal"
        )


def _check_float(dtype: str) -> None:
    if dtype not in FLOAT_BYTES:
        raise UserError(f"signal.dtype is {dtype}; use one of {', '.join(FLOAT_BYTES)}")
