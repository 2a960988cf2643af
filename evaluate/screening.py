"""Teacher-forced agreement of drafts with the target on held-out rows: cheap, and no decoding.

Shapes: C positions of a chunk, N of a row from its first prediction on, D the target's width,
V shared vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.statistics import (
    Bootstrap,
    Interval,
    Sums,
    paired_difference,
    pooled_ratio,
)
from distill.losses.head import Head
from distill.speculative.runner import Runner
from distill.teacher.head import check_head, head_of
from distill.teacher.hidden import last_hidden

CHUNK = 128
"""Positions whose logits exist at once: no [B·S, V] tensor is ever made."""


@dataclass(frozen=True)
class Trajectory:
    """A held-out row. The tokens at positions >= max(prompt_length, 1) are the ones predicted."""

    id: str
    tokens: list[int]
    prompt_length: int

    @property
    def first(self) -> int:
        """The position whose logits predict the first of them."""
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


@torch.inference_mode()
def teacher_forced(
    target: PreTrainedModel,
    drafts: Mapping[str, Callable[[], PreTrainedModel]],
    rows: Sequence[Trajectory],
    vocabulary_size: int,
    *,
    temperature: float = 1.0,
    bootstrap: Bootstrap,
) -> dict[str, Agreement]:
    """Every draft against one target pass a row. Both distributions at `temperature` (> 0).

    drafts: by name, how to load each; one is in memory at a time. UserError when no row has a
    token to predict, or a target whose head is not known.
    """
    rows = _predicted(rows)
    if not rows:
        raise UserError(
            "no held-out row has a token to predict: give rows longer than their prompt"
        )
    check_head(target)
    head = head_of(target).sliced(vocabulary_size)
    states = [_states(target, row) for row in rows]
    found: dict[str, Agreement] = {}
    for name, load in drafts.items():
        draft = load()
        pairs = zip(rows, states, strict=True)
        sums = [_row(draft, row, hidden, head, temperature) for row, hidden in pairs]
        del draft  # before the next one is loaded
        found[name] = pool(sums, bootstrap)
    return found


def behind_the_best(found: Mapping[str, Agreement], bootstrap: Bootstrap) -> dict[str, Interval]:
    """How far each draft's alpha lies below the highest one, paired over the rows; 0 for that one.

    All read the same rows, so the interval of a difference is narrower than the alphas' own tell.
    """
    alphas = {name: _sums(one.rows, "alpha") for name, one in found.items()}
    best = max(found, key=lambda name: found[name].alpha.value)
    return {name: paired_difference(alphas[best], one, bootstrap) for name, one in alphas.items()}


def target_passes(rows: Sequence[Trajectory]) -> int:
    """What `teacher_forced` spends: one for every row that has a token to predict."""
    return len(_predicted(rows))


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


def _predicted(rows: Sequence[Trajectory]) -> list[Trajectory]:
    return [row for row in rows if len(row.tokens) - 1 > row.first]


def _states(target: PreTrainedModel, row: Trajectory) -> Tensor:
    """What the target's head reads at the predicting positions, [N, D], kept off its device."""
    ids = torch.tensor([row.tokens[:-1]], device=target.device)
    return last_hidden(target, {"input_ids": ids})[0, row.first :].cpu()


def _row(
    draft: PreTrainedModel, row: Trajectory, states: Tensor, head: Head, temperature: float
) -> RowAgreement:
    sums, vocabulary_size = torch.zeros(3, dtype=torch.float64), head.weight.shape[0]
    chunks = _chunks(draft, row.tokens[:-1], row.first)
    for hidden, q_logits in zip(states.split(CHUNK), chunks, strict=True):
        p_logits = head.logits(hidden.to(head.weight.device))
        q_logits = q_logits[:, :vocabulary_size].to(p_logits.device)
        sums += compare(p_logits, q_logits, temperature).cpu()
    alpha, kl, agreement = sums.tolist()
    return RowAgreement(row.id, len(states), alpha, kl, agreement)


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


def pool(rows: list[RowAgreement], bootstrap: Bootstrap) -> Agreement:
    """Means over all tokens of the rows, intervals over rows."""

    def mean(name: str) -> Interval:
        return pooled_ratio(_sums(rows, name), bootstrap)

    return Agreement(mean("alpha"), mean("kl"), mean("agreement"), rows)


def _sums(rows: Sequence[RowAgreement], name: str) -> Sums:
    return Sums.of(rows, lambda r: r.id, lambda r: getattr(r, name), lambda r: r.tokens)
