"""A head on paper: its size, the ids that it covers, and its start from the target.

Shapes: V the target's vocabulary, v the head's reduced one.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from distill.errors import UserError
from distill.models.config import DraftConfig
from distill.models.eagle3 import Eagle3Head, feature_layers, head_config, make_head
from distill.models.folder import folder_is_head, model_json
from distill.models.plan import (
    DraftPlan,
    count_weights,
    plan_draft,
    plan_from_folder,
    text_config,
)
from distill.models.target import eos_token_ids
from distill.speculative.prediction import Cost, predicted_speedup

USUAL_ALPHA, USUAL_K = 0.6, 3
"""For which a size is chosen: what heads of public pairs accept, and the drafts they are served
with."""
SMALLEST = 1024
"""Ids that a size chosen by itself has at least."""


def plan_made(target_folder: Path, draft: DraftConfig) -> DraftPlan:
    """The plan of a draft of any kind that is made for the target."""
    return (plan_head if draft.is_head else plan_draft)(target_folder, draft)


def plan_existing(target_folder: Path, draft_folder: Path) -> DraftPlan:
    """The plan of a draft of any kind that lies in a folder."""
    if not folder_is_head(draft_folder):
        return plan_from_folder(target_folder, draft_folder)
    size = model_json(draft_folder, "config.json")["draft_vocab_size"]
    return plan_head(target_folder, DraftConfig(init="eagle3", vocabulary=size))


def plan_head(target_folder: Path, draft: DraftConfig, *, bytes_per_weight: int = 2) -> DraftPlan:
    """Plan from the target's config alone. A size that is left open is counted with all ids.

    Raises:
        UserError: a target with too few layers, or a vocabulary larger than the target's.
    """
    target = text_config(target_folder)
    feature_layers(target.num_hidden_layers)
    size = draft.vocabulary or target.vocab_size
    _check_size(size, target.vocab_size, len(eos_token_ids(target_folder)))
    config = head_config(target, size)
    weights = _weights(config)
    return DraftPlan(
        config,
        weights,
        count_weights(target),
        weights * bytes_per_weight,
        head_share=size * config.hidden_size / weights,
    )


def start_head(
    target: PreTrainedModel, target_folder: Path, counts: Tensor, size: int | None, seed: int
) -> Eagle3Head:
    """A head for the target, float32 on the CPU, the same for the same seed.

    counts: how often the target's own text has each id, [V]. size: ids that it covers; None: as
    many as gain the most (`choose_size`).
    """
    config = target.config.get_text_config()
    special = eos_token_ids(target_folder)
    if size is None:
        size = choose_size(counts, head_config(config, 1), count_weights(config))
    _check_size(size, len(counts), len(special))
    kept = keep_ids(counts, size, special)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_head(head_config(config, size), kept, target)


def random_head(plan: DraftPlan, seed: int) -> Eagle3Head:
    """A head of a plan's size with random weights, over the target's first ids: to be timed."""
    size = plan.config.draft_vocab_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Eagle3Head(plan.config)  # pyright: ignore[reportArgumentType]
    head.t2d[:size] = True
    return head


def choose_size(counts: Tensor, config: LlamaConfig, target_weights: int) -> int:
    """How many ids a head should cover: what coverage gains against what its rows cost.

    counts: [V]. config: of a head of one id. target_weights: read by one step of the target. A
    decode step is bound by the weights that it reads, so they stand for its time. Of powers of two
    (and V), the one of the highest predicted speedup for a head that accepts `USUAL_ALPHA` of what
    its ids cover.
    """
    covered = counts.double().sort(descending=True).values.cumsum(0)
    layer = _weights(config) - config.hidden_size
    V = len(counts)

    def gain(size: int) -> float:
        alpha = USUAL_ALPHA * (covered[size - 1] / covered[-1]).item()
        cost = Cost((layer + size * config.hidden_size) / target_weights)
        return predicted_speedup(alpha, USUAL_K, cost)

    powers = (2**power for power in range(SMALLEST.bit_length() - 1, V.bit_length()))
    return max(sorted({*(size for size in powers if size < V), V}), key=gain)


def keep_ids(counts: Tensor, size: int, always: tuple[int, ...]) -> Tensor:
    """The `size` ids that a reduced vocabulary keeps, ascending: [size].

    counts: [V]. always: ids that are kept whatever their count, such as the end tokens.
    """
    ranks = counts.double()
    ranks[list(always)] = torch.inf
    # Of equal counts the smaller id comes first, so that the choice is the same on any machine.
    return ranks.argsort(descending=True, stable=True)[:size].sort().values


def _check_size(size: int, whole: int, special: int) -> None:
    if not special <= size <= whole:
        raise UserError(
            f"draft.vocabulary is {size}: keep at least the {special} ids that end the target's "
            f"text and at most its {whole} ids, or set it to null for a choice."
        )


def _weights(config: LlamaConfig) -> int:
    """Of a head, without memory."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in Eagle3Head(config).parameters())
