"""For each kind of drafter: a tiny one beside an exact law, and the faults only it can have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from distill.evaluate.exactness.chi_square import Trial
from distill.evaluate.exactness.controls import ShiftedFeatures, ShiftedMarginals, WrongIds
from distill.evaluate.exactness.toy import EOS, TINY, tiny_model
from distill.models.eagle3 import Eagle3Head
from distill.speculative.drafters import Drafter, LayerDrafter, ModelDrafter
from distill.speculative.eagle3 import Eagle3Drafter
from distill.speculative.lookup import PromptLookup
from distill.speculative.parallel import ParallelDrafter

SIZE: int = TINY["vocab_size"]
OUTSIDE = 4
"""The one id that the tiny head does not cover."""
MASK = SIZE - 1
"""The tiny parallel draft's mask token."""


def tiny_trial(kind: type = ModelDrafter) -> Trial:
    """Three tokens of a six-token model, two drafts a round: rejections, a rollback and a bonus.

    Raises:
        KeyError: no trial of this kind of drafter is known.
    """
    known = next((base for base in kind.__mro__ if base in _TRIALS), kind)
    return _TRIALS[known]()


def harmless(drafter: Drafter) -> dict[str, Drafter]:
    """Drafters like this one that guess worse, by what is wrong; the law must stay."""
    if isinstance(drafter, Eagle3Drafter):
        return {"features of the position before": _like(drafter, ShiftedFeatures)}
    if isinstance(drafter, ParallelDrafter):
        return {"a mask token that is text": ParallelDrafter(drafter.model, MASK - 1)}
    return {}


def harmful(drafter: Drafter) -> dict[str, Drafter]:
    """Drafters like this one that say another q than they drew from, by what is wrong."""
    if isinstance(drafter, Eagle3Drafter):
        return {"q of the wrong ids": _like(drafter, WrongIds)}
    if isinstance(drafter, ParallelDrafter):
        wrong = ShiftedMarginals(drafter.model, drafter.mask_token)
        return {"q of the position before": wrong}
    return {}


def is_ever_unsure(drafter: Drafter) -> bool:
    """Whether a round can end by confidence; what is looked up has probability 1."""
    return not isinstance(drafter, PromptLookup)


def _like(drafter: Eagle3Drafter, kind: type[Eagle3Drafter]) -> Eagle3Drafter:
    return kind(drafter.model, drafter.embedding, drafter.reads)


def _trial(target: LlamaForCausalLM, drafter: Drafter) -> Trial:
    return Trial(target, drafter, [2, 5, 3], 2, 3, SIZE, (EOS,))


def _of_model() -> Trial:
    return _trial(tiny_model(seed=1, layers=2), ModelDrafter(tiny_model(seed=2, layers=1)))


def _of_layers() -> Trial:
    target = tiny_model(seed=1, layers=2)
    return _trial(target, LayerDrafter(target, layers=1))


def _of_head() -> Trial:
    target = tiny_model(seed=4, layers=3)
    kept = torch.tensor([token for token in range(SIZE) if token != OUTSIDE])
    shape: dict[str, Any] = {**TINY, "draft_vocab_size": len(kept)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        head = Eagle3Head(LlamaConfig(**shape))
        for weight in head.parameters():
            if weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.25)
    head.d2t.copy_(kept - torch.arange(len(kept)))
    head.t2d[kept] = True
    embedding = cast("Tensor", target.get_input_embeddings().weight)
    return _trial(target, Eagle3Drafter(head.eval(), embedding, (1, 2, 3)))


def _of_parallel() -> Trial:
    draft = tiny_model(seed=2, layers=1)
    return _trial(tiny_model(seed=1, layers=2), ParallelDrafter(draft, MASK))


def _of_lookup() -> Trial:
    # Every token of the prompt came before, so that most rounds draft.
    return replace(_trial(tiny_model(seed=1, layers=2), PromptLookup()), prompt=[2, 5, 3, 0, 2, 5])


_TRIALS: dict[type, Callable[[], Trial]] = {
    ModelDrafter: _of_model,
    LayerDrafter: _of_layers,
    Eagle3Drafter: _of_head,
    ParallelDrafter: _of_parallel,
    PromptLookup: _of_lookup,
}
