"""Teacher-forced agreement of drafts with the target on held-out rows: cheap, and no decoding.

Shapes: C positions of a chunk, V shared vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.statistics import Bootstrap, Interval, Sums, pooled_ratio
from distill.speculative.runner import Runner

CHUNK = 128
"""Positions whose logits exist at once: no [B·S, V] tensor is ever made."""


@dataclass(frozen=True)
class Trajectory:
    """A held-out row. The tokens at positions >= max(prompt_length, 1) are the ones predicted."""

    id: str
    tokens: list[int]
    prompt_length: int


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


@torch.inference_mode()
def teacher_forced(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    rows: Sequence[Trajectory],
    vocabulary_size: int,
    *,
    temperature: float = 1.0,
    bootstrap: Bootstrap,
) -> dict[str, Agreement]:
    """Every draft against the same target passes. Both distributions at `temperature` (> 0).

    UserError when no row has a token to predict.
    """
    rows = [row for row in rows if len(row.tokens) > max(row.prompt_length, 1)]
    if not rows:
        raise UserError(
            "no held-out row has a token to predict: give rows longer than their prompt"
        )
    found: dict[str, list[RowAgreement]] = {name: [] for name in drafts}
    for row in rows:
        for name, sums in _row(target, drafts, row, vocabulary_size, temperature).items():
            tokens = len(row.tokens) - max(row.prompt_length, 1)
            alpha, kl, agreement = sums.tolist()
            found[name].append(RowAgreement(row.id, tokens, alpha, kl, agreement))
    return {name: _pool(rows, bootstrap) for name, rows in found.items()}


def target_passes(rows: Sequence[Trajectory]) -> int:
    """What `teacher_forced` spends: a prompt pass and its chunks for every row."""
    begins = [(row, max(row.prompt_length, 1) - 1) for row in rows]
    return sum(
        1 + -(-(len(row.tokens) - 1 - first) // CHUNK)
        for row, first in begins
        if len(row.tokens) - 1 > first
    )


def choose(alphas: Mapping[str, float], order: Sequence[str], most: int) -> list[str]:
    """The `most` names to decode for real: the last of `order` and the best by alpha."""
    if most < 1:
        raise UserError(f"evaluate.max_candidates must be at least 1, not {most}")
    last = order[-1]
    ranked = sorted(order[:-1], key=lambda name: alphas[name], reverse=True)
    chosen = {last, *ranked[: most - 1]}
    return [name for name in order if name in chosen]


def compare(p_logits: Tensor, q_logits: Tensor, temperature: float) -> Tensor:
    """Logits [C, V] -> [3] float64 sums over C: Σ_x min(p, q), KL(p‖q), equal argmax."""
    log_p = torch.log_softmax(p_logits.float() / temperature, dim=-1)
    log_q = torch.log_softmax(q_logits.float() / temperature, dim=-1)
    alpha = torch.minimum(log_p, log_q).exp().sum(-1)
    kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    agreement = p_logits.argmax(-1) == q_logits.argmax(-1)
    return torch.stack([alpha, kl, agreement.float()]).double().sum(-1)


def _row(
    target: PreTrainedModel,
    drafts: Mapping[str, PreTrainedModel],
    row: Trajectory,
    vocabulary_size: int,
    temperature: float,
) -> dict[str, Tensor]:
    sums = {name: torch.zeros(3, dtype=torch.float64) for name in drafts}
    first = max(row.prompt_length, 1) - 1  # the position whose logits predict the first of them
    draft_chunks = {name: _chunks(draft, row.tokens[:-1], first) for name, draft in drafts.items()}
    for p_logits in _chunks(target, row.tokens[:-1], first):
        for name, chunks in draft_chunks.items():
            q_logits = next(chunks).to(p_logits.device)
            sums[name] += compare(
                p_logits[:, :vocabulary_size], q_logits[:, :vocabulary_size], temperature
            ).cpu()
    return sums


def _chunks(model: PreTrainedModel, tokens: list[int], first: int) -> Iterator[Tensor]:
    """Logits [C, V] of the positions from `first` on, in chunks, over the engine's own cache."""
    runner = Runner(model)
    if len(tokens) > runner.context_limit:
        raise UserError(
            f"a held-out row of {len(tokens)} tokens is longer than the context of a candidate "
            f"({runner.context_limit}): lower data.max_length"
        )
    runner.prefill([tokens[: first + 1]], longest=len(tokens))
    for start in range(first, len(tokens), CHUNK):
        ids = torch.tensor([tokens[start : start + CHUNK]], device=runner.device)
        logits = runner.run(ids)
        assert logits is not None
        runner.cache.advance([ids.shape[1]])
        yield logits[0]


def _pool(rows: list[RowAgreement], bootstrap: Bootstrap) -> Agreement:
    def mean(name: str) -> Interval:
        sums = Sums.of(rows, lambda r: r.id, lambda r: getattr(r, name), lambda r: r.tokens)
        return pooled_ratio(sums, bootstrap)

    return Agreement(mean("alpha"), mean("kl"), mean("agreement"), rows)
