"""The draft and its loss as one module: what wraps or shards it sees one forward pass.

B rows, S tokens a row, T supervised tokens of the micro-batch, V vocabulary, W the target's width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.losses.fused import Signal
from distill.losses.head import Head
from distill.models.eagle3 import Eagle3Head
from distill.speculative.architecture import attention_windows, is_eager
from distill.teacher.features import ReadSignal
from distill.teacher.head import head_of, last_hidden
from distill.training.masked import Entries, Mask, lay_out, visible
from distill.training.objective import Objective
from distill.training.unroll import documents_of, unroll

STEP_WEIGHT = 0.8
"""A step of a draft that guesses several tokens weighs this much of the one before it: it counts
only if all earlier tokens were accepted. The factor is that of EAGLE-3's published training code.
"""


class Reading(NamedTuple):
    """What a head is trained with beside its weights.

    embedding: the target's [V, W], which it shares. steps: how many it is unrolled.
    """

    embedding: Tensor
    steps: int


class Student(nn.Module):
    """Draft hidden states at the supervised positions, then the loss over the common vocabulary."""

    def __init__(self, draft: PreTrainedModel, vocabulary_size: int):
        super().__init__()
        self.draft = draft
        self._vocabulary_size = vocabulary_size

    def forward(
        self,
        batch: dict[str, Tensor],
        positions: Tensor,
        signal: Signal | None,
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss SUM over the T `positions` (flat into `input_ids` [B, S]) and its metric sums.

        `signal` is None for a micro-batch without a supervised token (T = 0): the loss is then a
        zero that is still connected to every parameter, so that ranks that wait for each other's
        gradients get them.
        """
        hidden = last_hidden(self.draft, batch)
        if signal is None:
            return 0.0 * hidden.sum() + head_zero(self.draft), {}
        states = hidden.flatten(0, 1).index_select(0, positions)
        return score(
            states,
            head_of(self.draft),
            signal,
            objective,
            batch["input_ids"].flatten()[positions + 1],
            self._vocabulary_size,
        )


class HeadStudent(nn.Module):
    """A head that reads the target's states, unrolled, and its loss over the ids that it covers.

    The target's embedding is no part of it: it is held beside it, as the teacher is, and has no
    part in parameters, optimizer or checkpoints.
    """

    def __init__(self, head: Eagle3Head, reading: Reading, vocabulary_size: int):
        super().__init__()
        self.draft = head
        self._reading = reading
        self._vocabulary_size = vocabulary_size

    def forward(
        self,
        batch: dict[str, Tensor],
        positions: Tensor,
        signal: Signal | None,
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As of `Student`; the sums are over all steps, the loss is their weighted mean.

        signal: a `ReadSignal`. The token behind position i is predicted from entry i − 1; in step
        j that is the j-th own entry of a chain, which needs a true entry before it.
        """
        if signal is None:
            zeros = (0.0 * weight.sum() for weight in self.draft.parameters())
            return torch.stack(list(zeros)).sum(), {}
        assert isinstance(signal, ReadSignal), "a head is taught by a teacher that gives features"
        kept = self._kept()
        reduced = signal.reduced(kept)
        places = _places(batch)
        ids = batch["input_ids"]
        outputs = unroll(
            self.draft,
            F.embedding(ids[:, 1:], self._embedding(ids.device)),
            signal.features[:, :-1].to(self.draft.dtype),
            places[:, :-1],
            self._reading.steps,
        )
        depth = places.expand_as(ids).flatten()[positions]
        rows = positions.div(ids.shape[1], rounding_mode="floor")
        entries = positions - rows - 1  # a row has one entry fewer than tokens
        losses: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        for step, output in enumerate(outputs):
            chosen = (depth > step).nonzero()[:, 0]
            states = output.flatten(0, 1).index_select(0, entries[chosen])
            loss, of_step = score(
                states,
                head_of(self.draft).sliced(len(kept)),
                reduced.take(chosen),
                objective,
                ids.flatten()[positions[chosen] + 1],
                len(kept),
            )
            losses.append(loss * STEP_WEIGHT**step)
            sums = {name: sums.get(name, 0.0) + value for name, value in of_step.items()}
        weight = sum(STEP_WEIGHT**step for step in range(self._reading.steps))
        return torch.stack(losses).sum() / weight, sums

    def _kept(self) -> Tensor:
        """The ids of the head's rows that both models share; they ascend."""
        kept = self.draft.kept
        return kept[kept < self._vocabulary_size]

    def _embedding(self, device: torch.device) -> Tensor:
        if self._reading.embedding.device != device:
            self._reading = self._reading._replace(embedding=self._reading.embedding.to(device))
        return self._reading.embedding


class ParallelStudent(nn.Module):
    """A draft that guesses several tokens in one pass behind mask tokens, and its loss over all."""

    def __init__(self, draft: PreTrainedModel, mask: Mask, vocabulary_size: int):
        super().__init__()
        self.draft = draft
        self._mask = mask
        self._vocabulary_size = vocabulary_size
        self._windows = attention_windows(draft)
        self._eager = is_eager(draft)

    def forward(
        self,
        batch: dict[str, Tensor],
        positions: Tensor,
        signal: Signal | None,
        objective: Objective,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As of `Student`; the sums are over all steps, the loss is their weighted mean.

        While the draft trains, chains are cut short by lot and the loss of what stays weighs more,
        so that its expectation is that of whole chains.
        """
        ids = batch["input_ids"]
        places = _places(batch).expand_as(ids)
        lots = torch.rand(len(positions), device=ids.device) if self.draft.training else None
        entries = lay_out(positions, places, self._mask, lots)
        text, behind = self._states(ids, places, entries)
        if signal is None:
            return 0.0 * text.sum() + head_zero(self.draft), {}
        every = torch.arange(len(positions), device=ids.device)
        steps = [(text.flatten(0, 1)[positions], every)]
        flat = behind.flatten(0, 1)
        steps += [(flat[at], told) for at, told in zip(entries.slots, entries.told, strict=True)]
        head, following = head_of(self.draft), ids.flatten()[positions + 1]
        losses: list[Tensor] = []
        sums: dict[str, Tensor] = {}
        for step, (states, told) in enumerate(steps):
            loss, of_step = score(
                states, head, signal.take(told), objective, following[told], self._vocabulary_size
            )
            kept = 1.0 if lots is None else self._mask.share(step)
            losses.append(loss * STEP_WEIGHT**step / kept)
            sums = {name: sums.get(name, 0.0) + value for name, value in of_step.items()}
        weight = sum(STEP_WEIGHT**step for step in range(len(steps)))
        return torch.stack(losses).sum() / weight, sums

    def _states(self, ids: Tensor, places: Tensor, entries: Entries) -> tuple[Tensor, Tensor]:
        """What the head reads at the tokens [B, S, d] and at the entries behind them [B, E, d]."""
        documents = documents_of(places)
        masks = {
            kind: self._as_wanted(visible(documents, places, entries, window))
            for kind, window in self._windows.items()
        }
        states = self.draft.base_model(
            input_ids=torch.cat([ids, torch.full_like(entries.base, self._mask.token)], 1),
            position_ids=torch.cat([places, entries.place], 1),
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            use_cache=False,
        ).last_hidden_state
        return states[:, : ids.shape[1]], states[:, ids.shape[1] :]

    def _as_wanted(self, seen: Tensor) -> Tensor:
        """Boolean for SDPA; additive for eager attention."""
        if not self._eager:
            return seen
        least = torch.finfo(self.draft.dtype).min
        return torch.zeros_like(seen, dtype=self.draft.dtype).masked_fill_(~seen, least)


AnyStudent = Student | HeadStudent | ParallelStudent


def student_of(
    draft: PreTrainedModel, vocabulary_size: int, kind: Reading | Mask | None
) -> AnyStudent:
    """What trains a draft: a `Reading` is given for a head, a `Mask` for a parallel one."""
    if isinstance(kind, Mask):
        return ParallelStudent(draft, kind, vocabulary_size)
    if isinstance(draft, Eagle3Head):
        assert kind is not None, "a head needs the target's embedding"
        return HeadStudent(draft, kind, vocabulary_size)
    return Student(draft, vocabulary_size)


def score(
    states: Tensor,
    head: Head,
    signal: Signal,
    objective: Objective,
    labels: Tensor,
    vocabulary_size: int,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss SUM and metric sums of a draft's states [T, d]."""
    kind = states.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    # The loss casts the head once; autocast would do so again for every chunk.
    with torch.autocast(kind, enabled=False):
        return objective(
            states, head, signal, labels, vocabulary_size=vocabulary_size, compute_dtype=dtype
        )


def head_zero(draft: PreTrainedModel) -> Tensor:
    """A zero connected to the head."""
    head = head_of(draft)
    zero = 0.0 * head.weight.sum()
    return zero if head.bias is None else zero + 0.0 * head.bias.sum()


def _places(batch: dict[str, Tensor]) -> Tensor:
    """Each token's position in its document, [B or 1, S]."""
    if "position_ids" in batch:
        return batch["position_ids"]
    ids = batch["input_ids"]
    return torch.arange(ids.shape[1], device=ids.device)[None]
