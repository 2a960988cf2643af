"""Which candidates are decoded for real, by cheap numbers of the same held-out rows."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from distill.evaluate.proxies import FEWEST_CANDIDATES, Teacher
from distill.evaluate.screening import (
    Trajectory,
    behind_the_best,
    choose,
    target_passes,
    teacher_forced,
)
from distill.evaluate.shards import once
from distill.evaluate.statistics import Bootstrap
from distill.models.draft import load_draft
from distill.pipelines.candidates import Candidate
from distill.pipelines.inputs import samplings

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shortlist:
    """names: to decode. teachers: what was found, by name. target_passes: spent on finding it."""

    names: list[str]
    teachers: dict[str, Teacher]
    target_passes: int = 0


def shortlist(
    cfg: DictConfig,
    candidates: Sequence[Candidate],
    target: "PreTrainedModel",
    held_out: "Callable[[], Dataset]",
    vocabulary: int,
    folder: Path,
) -> Shortlist:
    """At most `evaluate.max_candidates`. Numbers of one training's own validation are taken as is.

    Those of several trainings are of different rows: then all candidates read the same held-out
    ones, teacher-forced. So they do for the proxies' sake, when there are enough to compare.
    """
    most = cfg.evaluate.max_candidates
    names = [one.name for one in candidates]
    if (teachers := _own(candidates)) is not None:
        spent = 0
        for name, teacher in teachers.items():
            log.info("held out: %s alpha %.3f, KL %.3f", name, teacher.alpha, teacher.kl)
    elif reads_rows(candidates, most):
        rows = [
            Trajectory(row["id"], list(row["input_ids"]), row["prompt_length"])
            for row in held_out().to_list()
        ]
        spent = target_passes(rows)
        found = once(
            folder / "teacher_forced.json",
            lambda: _teacher_forced(cfg, candidates, target, rows, vocabulary),
        )
        teachers = {name: Teacher(**numbers) for name, numbers in found.items()}
    else:
        return Shortlist(names, {})
    return Shortlist(
        choose({n: t.alpha for n, t in teachers.items()}, names, most), teachers, spent
    )


def reads_rows(candidates: Sequence[Candidate], most: int) -> bool:
    """Whether the choice needs held-out rows that have a text: else none has to be written."""
    enough = len(candidates) > most or len(candidates) >= FEWEST_CANDIDATES
    return enough and _own(candidates) is None


def _own(candidates: Sequence[Candidate]) -> dict[str, Teacher] | None:
    """From metrics.json, where one training wrote all of them."""
    names = [field.name for field in fields(Teacher)]
    trainings = {one.training for one in candidates}
    if (
        trainings == {None}
        or len(trainings) > 1
        or any(not {*names} <= one.metrics.keys() for one in candidates)
    ):
        return None
    return {one.name: Teacher(**{name: one.metrics[name] for name in names}) for one in candidates}


def _teacher_forced(
    cfg: DictConfig,
    candidates: Sequence[Candidate],
    target: "PreTrainedModel",
    rows: list[Trajectory],
    vocabulary: int,
) -> dict[str, dict[str, float]]:
    drafts = {
        one.name: partial(load_draft, one.folder, dtype=target.dtype, device=target.device)
        for one in candidates
    }
    bootstrap, temperature = Bootstrap(cfg.evaluate.bootstrap, cfg.seed), _temperature(cfg)
    found = teacher_forced(
        target, drafts, rows, vocabulary, temperature=temperature, bootstrap=bootstrap
    )
    for name, gap in behind_the_best(found, bootstrap).items():
        alpha, kl = found[name].alpha, found[name].kl.value
        log.info("held out: %s alpha %s, below the best by %s; KL %.3f", name, alpha, gap, kl)
    return {
        name: asdict(Teacher(one.kl.value, one.alpha.value, one.agreement.value))
        for name, one in found.items()
    }


def _temperature(cfg: DictConfig) -> float:
    """The first load's; 1 if that is greedy, where alpha would count equal argmaxes only."""
    first = samplings(cfg)[0]
    return 1.0 if first.greedy else first.temperature
