"""Teacher-forced agreement of drafts with the target on held-out rows: cheap, and no decoding.

Shapes: T predicted tokens of a batch of rows, N of one row, S its longest row, d and D the widths
of draft and target, V shared vocabulary.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from distill.data.batching import pack
from distill.errors import UserError
from distill.evaluate.candidates import Candidate, HeldOutScores, scores_of_training
from distill.evaluate.correlation import FEWEST_CANDIDATES
from distill.evaluate.intervals import LINEAR, LOGIT, Interval
from distill.evaluate.statistics import (
    Sums,
    paired_difference,
    pooled_ratio,
)
from distill.losses.dense import DenseScorer, Whole
from distill.losses.divergence import check_temperature
from distill.losses.fused import token_scores
from distill.losses.head import Head
from distill.losses.kernels import Scores, TokenLoss, worth_compiling
from distill.losses.mixture import FORWARD_KL
from distill.losses.reduced import summarise
from distill.models.eagle3 import Eagle3Head, feature_layers
from distill.progress import Progress
from distill.speculative.architecture import context_limit
from distill.speculative.sampling import Sampling
from distill.teacher.features import reading
from distill.teacher.head import check_head, head_of, last_hidden
from distill.training.unroll import unroll

log = logging.getLogger(__name__)
CHUNK = 256
"""Tokens whose logits exist at once: no [T, V] tensor is ever made."""
BATCH_TOKENS = 4096
"""Most tokens that a draft reads in one pass, padding included."""


@dataclass(frozen=True)
class Trajectory:
    """A held-out row whose tokens at positions >= max(prompt_length, 1) are predicted."""

    id: str
    tokens: list[int]
    prompt_length: int

    @property
    def first(self) -> int:
        """The position whose logits predict the first of these tokens."""
        return max(self.prompt_length, 1) - 1


@dataclass(frozen=True)
class RowAgreement:
    """Sums over the predicted tokens of one row. alpha: Σ_x min(p, q). kl: KL(p‖q) in nats."""

    id: str
    tokens: int
    alpha: float
    kl: float
    agreement: float


@dataclass(frozen=True)
class Agreement:
    """A candidate's means over all predicted tokens, and the rows they came from."""

    alpha: Interval
    kl: Interval
    agreement: Interval
    rows: list[RowAgreement]


@dataclass(frozen=True)
class Screening:
    """Which candidates are decoded (names), and what held-out rows say of each by name (scores)."""

    names: list[str]
    scores: dict[str, HeldOutScores]


def screen(
    candidates: Sequence[Candidate],
    most: int,
    sampling: Sampling,
    read: Callable[[], dict[str, HeldOutScores]],
) -> Screening:
    """Choose at most `most` candidates for decoding at `sampling`.

    The scores that one training wrote of all candidates are taken as they are. Scores of several
    trainings belong to different rows; then `read` lets all candidates read the same held-out rows.
    It also does so where there are enough candidates to correlate the scores with decoding.
    """
    names = [one.name for one in candidates]
    if (scores := scores_of_training(candidates, sampling)) is not None:
        for name, one in scores.items():
            log.info("held out: %s alpha %.3f, KL %.3f", name, one.alpha, one.kl)
    elif reads_rows(candidates, most, sampling):
        scores = read()
    else:
        return Screening(names, {})
    foretold = {name: one.at(sampling) for name, one in scores.items()}
    return Screening(choose(foretold, names, most), scores)


def reads_rows(candidates: Sequence[Candidate], most: int, sampling: Sampling) -> bool:
    """Whether the choice needs held-out rows with a text; if not, the target need write none."""
    enough = len(candidates) > most or len(candidates) >= FEWEST_CANDIDATES
    return enough and scores_of_training(candidates, sampling) is None


def held_out_scores(
    target: PreTrainedModel,
    drafts: Mapping[str, Callable[[], PreTrainedModel]],
    rows: Sequence[Trajectory],
    vocabulary_size: int,
    temperature: float,
) -> dict[str, HeldOutScores]:
    """The means of `teacher_forced`; the log tells how far each draft lies below the best."""
    found = teacher_forced(target, drafts, rows, vocabulary_size, temperature=temperature)
    for name, gap in behind_the_best(found).items():
        alpha, kl = found[name].alpha, found[name].kl.value
        log.info("held out: %s alpha %s, below the best by %s; KL %.3f", name, alpha, gap, kl)
    return {
        name: HeldOutScores(one.kl.value, one.alpha.value, one.agreement.value)
        for name, one in found.items()
    }


@torch.inference_mode()
def teacher_forced(
    target: PreTrainedModel,
    drafts: Mapping[str, Callable[[], PreTrainedModel]],
    rows: Sequence[Trajectory],
    vocabulary_size: int,
    *,
    temperature: float = 1.0,
) -> dict[str, Agreement]:
    """Compare every draft with the target on the same rows, both at `temperature` (> 0).

    The target reads each row once, whatever the number of drafts.


    drafts: by name, how to load each; one is in memory at a time. UserError when no row has a
    token to predict, one is longer than a draft's context, or the head of a model is not known.
    """
    check_temperature(temperature)
    rows = _predicted(rows)
    if not rows:
        raise UserError(
            "no held-out row has a token to predict: give rows longer than their prompt"
        )
    check_head(target)
    head = head_of(target).sliced(vocabulary_size).at(temperature)
    # Off the target's device, whose memory the drafts need more.
    with Progress("held out: the target reads", len(rows)) as progress:
        states = [_states(target, [row])[0].cpu() for row in progress.each(rows)]
    found: dict[str, Agreement] = {}
    for name, load in drafts.items():
        draft = load()
        _check_draft(draft, rows)
        reader = _reader(draft, target, head, temperature)
        with Progress(f"held out: {name} reads", len(rows)) as progress:
            sums = _agreements(rows, states, reader, progress)
        del draft, reader  # before the next one is loaded
        found[name] = pool(sums)
    return found


def behind_the_best(found: Mapping[str, Agreement]) -> dict[str, Interval]:
    """How far each draft's alpha lies below the highest, paired over the rows; 0 for the highest.

    All read the same rows, so the interval of a difference is narrower than the alphas' own tell.
    """
    alphas = {name: _sums(one.rows, "alpha") for name, one in found.items()}
    best = max(found, key=lambda name: found[name].alpha.value)
    return {name: paired_difference(alphas[best], one) for name, one in alphas.items()}


def choose(alphas: Mapping[str, float], order: Sequence[str], most: int) -> list[str]:
    """The `most` names to decode for real: the last of `order` and the best by alpha."""
    if most < 1:
        raise UserError(f"evaluate.max_candidates must be at least 1, not {most}")
    last = order[-1]
    ranked = sorted(order[:-1], key=lambda name: alphas[name], reverse=True)
    chosen = {last, *ranked[: most - 1]}
    return [name for name in order if name in chosen]


def token_agreement(
    hidden: Tensor,
    head: Head,
    target_hidden: Tensor,
    target_head: Head,
    whole: Whole | None = None,
) -> Scores:
    """Hidden states [T, d] and [T, D], heads of V rows -> [T]: KL(p‖q), Σ_x min(p, q), agreement.

    The trainer's kernel, which makes all three from a few tokens' logits while these are in cache.
    whole: of the target's logits, where the heads hold only some of its ids.
    """
    compiled = worth_compiling(hidden.device, target_head.weight.shape[0])
    loss = TokenLoss(FORWARD_KL, 1.0, compiled)
    source = DenseScorer(target_hidden, target_head, loss, None, CHUNK, whole)
    return token_scores(hidden, head, source, CHUNK, head.weight.dtype)


def _predicted(rows: Sequence[Trajectory]) -> list[Trajectory]:
    return [row for row in rows if len(row.tokens) - 1 > row.first]


def _states(model: PreTrainedModel, rows: Sequence[Trajectory]) -> list[Tensor]:
    """The hidden states [N, width] of each row that the head reads at predicting positions."""
    hidden = last_hidden(model, {"input_ids": _ids(rows, model.device)})
    return [h[row.first : len(row.tokens) - 1] for h, row in zip(hidden, rows, strict=True)]


def _ids(rows: Sequence[Trajectory], device: torch.device) -> Tensor:
    """The rows but for their last tokens, padded: [B, S]."""
    inputs = [torch.tensor(row.tokens[:-1]) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True).to(device)


class _Reader(Protocol):
    """Reads rows with a draft, and scores what came out of it against the target."""

    def states(self, rows: Sequence[Trajectory]) -> list[Tensor]:
        """What its head reads at the last N predicting positions of each row: [N, d]."""
        ...

    def scores(self, hidden: Tensor, target_hidden: Tensor) -> Scores:
        """Of its states [T, d] and the target's [T, D]."""
        ...


def _reader(
    draft: PreTrainedModel, target: PreTrainedModel, head: Head, temperature: float
) -> _Reader:
    """head: the target's of the shared ids, at `temperature`."""
    if isinstance(draft, Eagle3Head):
        return _HeadReader(draft, target, head, temperature)
    return _DraftReader(draft, head, temperature)


class _DraftReader:
    """A separate draft reads rows by itself."""

    def __init__(self, draft: PreTrainedModel, head: Head, temperature: float):
        self._draft = draft
        self._own = head_of(draft).sliced(head.weight.shape[0]).at(temperature)
        self._theirs = head.on(draft.device)

    def states(self, rows: Sequence[Trajectory]) -> list[Tensor]:
        return _states(self._draft, rows)

    def scores(self, hidden: Tensor, target_hidden: Tensor) -> Scores:
        theirs = target_hidden.to(self._draft.device)
        return token_agreement(hidden, self._own, theirs, self._theirs)


class _HeadReader:
    """A head reads the target's states: its first draft, behind a context of true entries alone.

    A row's first token gives it no entry, so it predicts nothing behind that.
    """

    def __init__(
        self, head: Eagle3Head, target: PreTrainedModel, target_head: Head, temperature: float
    ):
        kept = head.kept[head.kept < target_head.weight.shape[0]]
        self._head, self._target = head, target
        self._layers = feature_layers(target.config.get_text_config().num_hidden_layers)
        self._own = head_of(head).sliced(len(kept)).at(temperature)
        self._all = target_head.on(head.device)
        self._theirs = self._all.rows(kept)

    def states(self, rows: Sequence[Trajectory]) -> list[Tensor]:
        ids = _ids(rows, self._target.device)
        with reading(self._target, self._layers) as read:
            last_hidden(self._target, {"input_ids": ids})
        features = torch.cat([read[n] for n in self._layers], -1).to(self._head.dtype)
        embedding: Any = self._target.get_input_embeddings()
        embedded = F.embedding(ids[:, 1:], embedding.weight).to(self._head.dtype)
        places = torch.arange(ids.shape[1] - 1, device=ids.device)[None]
        output = next(unroll(self._head, embedded, features[:, :-1], places, 1))
        return [
            h[max(row.first, 1) - 1 : len(row.tokens) - 2]
            for h, row in zip(output, rows, strict=True)
        ]

    def scores(self, hidden: Tensor, target_hidden: Tensor) -> Scores:
        theirs = target_hidden.to(self._head.device)
        whole = summarise(theirs, self._all)
        return token_agreement(hidden, self._own, theirs, self._theirs, whole)


def _check_draft(draft: PreTrainedModel, rows: Sequence[Trajectory]) -> None:
    longest, limit = max(len(row.tokens) - 1 for row in rows), context_limit(draft)
    if longest > limit:
        raise UserError(
            f"a held-out row of {longest} tokens is longer than the context of a candidate "
            f"({limit}): lower data.max_length"
        )
    if not isinstance(draft, Eagle3Head):
        check_head(draft)


def _agreements(
    rows: Sequence[Trajectory], states: Sequence[Tensor], reader: _Reader, progress: Progress
) -> list[RowAgreement]:
    """The agreement of a draft on every row, in their order; rows of like length share a pass.

    states: the target's, [N, D] of each row.
    """
    lengths = np.array([len(row.tokens) - 1 for row in rows])
    found: dict[int, RowAgreement] = {}
    for batch in pack(np.argsort(lengths, kind="stable").tolist(), lengths, BATCH_TOKENS):
        own = reader.states([rows[n] for n in batch])
        sizes = [len(one) for one in own]
        theirs = [states[n][len(states[n]) - size :] for n, size in zip(batch, sizes, strict=True)]
        scores = reader.scores(torch.cat(own), torch.cat(theirs))
        parts = (part.cpu().double().split(sizes) for part in scores)
        for n, size, *of_row in zip(batch, sizes, *parts, strict=True):
            kl, alpha, same = (part.sum().item() for part in of_row)
            found[n] = RowAgreement(rows[n].id, size, alpha, kl, same)
        progress.advance(len(batch))
    return [found[n] for n in range(len(rows))]


def pool(rows: list[RowAgreement]) -> Agreement:
    """Means over all tokens of the rows, intervals over rows."""

    def mean(name: str) -> Interval:
        return pooled_ratio(_sums(rows, name), LINEAR if name == "kl" else LOGIT)

    return Agreement(mean("alpha"), mean("kl"), mean("agreement"), rows)


def _sums(rows: Sequence[RowAgreement], name: str) -> Sums:
    return Sums.of(rows, lambda r: r.id, lambda r: getattr(r, name), lambda r: r.tokens)
