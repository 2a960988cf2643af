"""The evaluation of candidates: decode at every load; then pool, choose and judge, load by load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.load import Load
from distill.evaluate.parts import Part, parts
from distill.evaluate.racing import FIRST_ROUND, race
from distill.evaluate.records import PLAIN, Arm, Measurement, Prompt
from distill.evaluate.select import TableRow, champion, tabulate
from distill.evaluate.speed import Bench, Progress, measure
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.verdict import Verdict, judge
from distill.speculative.drafters import Drafter, ModelDrafter
from distill.speculative.sampling import Sampling


@dataclass(frozen=True)
class Grid:
    """What is measured: every k at every load. contexts: edges of the context-length buckets.

    racing: arms that can no longer win stop decoding, by this bootstrap; None: all decode all.
    confidence_threshold: k is the most that is drafted; a round ends behind a less confident token.
    """

    num_draft_tokens: Sequence[int]
    samplings: Sequence[Sampling]
    batch_sizes: Sequence[int]
    max_new_tokens: int
    eos_token_ids: Sequence[int]
    vocabulary_size: int
    seed: int
    contexts: Sequence[int] = ()
    racing: Bootstrap | None = None
    confidence_threshold: float = 0.0

    def loads(self) -> list[Load]:
        return [
            Load(
                sampling,
                self.max_new_tokens,
                tuple(self.eos_token_ids),
                batch_size,
                self.vocabulary_size,
                self.seed,
                tuple(self.contexts),
                self.confidence_threshold,
            )
            for sampling, batch_size in product(self.samplings, self.batch_sizes)
        ]


@dataclass(frozen=True)
class Bar:
    """What a draft must reach to be served: margin overall, floors by domain."""

    bootstrap: Bootstrap
    margin: float = 1.0
    floors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """One load. rows: every measurement; table: pooled, one line per candidate and k.

    domains and buckets: of the champion.
    """

    rows: list[Measurement]
    table: list[TableRow]
    champion: TableRow
    verdict: Verdict
    domains: list[Part]
    buckets: list[Part]

    def summary(self) -> dict[str, Any]:
        """The champion's numbers and the verdict as a flat mapping."""
        best, verdict = self.champion, self.verdict
        return {
            "draft": best.candidate,
            "num_draft_tokens": best.num_draft_tokens,
            "confidence_threshold": best.confidence_threshold,
            "alpha": best.alpha.value,
            "alpha_low": best.alpha.low,
            "alpha_high": best.alpha.high,
            "alpha_empirical": best.alpha_empirical,
            "tokens_per_pass": best.tokens_per_pass,
            "draft_utilisation": best.draft_utilisation,
            "cost_ratio": best.cost_ratio,
            "verify_cost": best.verify_cost,
            "speedup": best.speedup.value,
            "speedup_low": best.speedup.low,
            "speedup_high": best.speedup.high,
            "speedup_end_to_end": best.speedup_end_to_end.value,
            "predicted_speedup": best.predicted_speedup,
            "engine_efficiency": best.engine_efficiency,
            "verdict": verdict.decision,
            "reason": verdict.reason,
            "break_even_alpha": verdict.break_even.alpha if verdict.break_even else None,
            "best_k": verdict.best_k,
        }


def measure_candidates(
    target: PreTrainedModel,
    candidates: Mapping[str, PreTrainedModel | Drafter],
    prompts: Sequence[Prompt],
    grid: Grid,
    folder: Path,
    progress: Progress,
) -> list[Measurement]:
    """Decode `prompts` with the target alone and with every candidate at every k and load.

    A candidate is a draft model or a drafter. Rows are kept under `folder` as they come; the same
    call goes on after a kill, and ranks share the work. UserError for an empty list of prompts,
    candidates, k or loads, a k below 1, or a prompt that comes twice.

    Returns:
        The rows of all loads, one load after the other.
    """
    _check(candidates, prompts, grid)
    bench = Bench(target, {name: _drafter(one) for name, one in candidates.items()})
    arms = [Arm(name, k) for name in candidates for k in grid.num_draft_tokens]
    entrants = race(arms, grid.racing) if grid.racing else lambda _: arms
    first_round = FIRST_ROUND if grid.racing else None
    found: list[Measurement] = []
    for number, load in enumerate(grid.loads()):
        place = folder / f"load-{number:02d}"
        found += measure(bench, prompts, entrants, load, place, progress, first_round)
    return found


def conclude(
    rows: list[Measurement], bar: Bar, held_out: Mapping[str, float] = MappingProxyType({})
) -> Evaluation:
    """Pool rows of one load, however they were gathered, choose and judge.

    held_out: teacher-forced alpha by candidate, which decides between equals (`champion`).
    """
    table = tabulate(rows, bar.bootstrap)
    best = champion(table, rows, held_out, bar.bootstrap)
    domains = parts(rows, best.arm, lambda row: row.domain, bar.bootstrap)
    domains.sort(key=lambda part: part.name)
    buckets = parts(rows, best.arm, lambda row: row.bucket, bar.bootstrap)
    verdict = judge(best, table, bar.margin, bar.floors, domains)
    return Evaluation(rows, table, best, verdict, domains, buckets)


def _drafter(candidate: PreTrainedModel | Drafter) -> Drafter:
    return ModelDrafter(candidate) if isinstance(candidate, PreTrainedModel) else candidate


def _check(
    candidates: Mapping[str, PreTrainedModel | Drafter], prompts: Sequence[Prompt], grid: Grid
) -> None:
    if not candidates:
        raise UserError("no candidate to measure: name drafts in evaluate.candidates or train one")
    if PLAIN in candidates:
        raise UserError(f"{PLAIN!r} is the target's own decoding: give that candidate another name")
    if not prompts:
        raise UserError("no prompts are left to decode: widen the filter or the held-out part")
    if not grid.num_draft_tokens or min(grid.num_draft_tokens) < 1:
        raise UserError(
            f"evaluate.num_draft_tokens is {list(grid.num_draft_tokens)}: "
            "give at least one k, each at least 1"
        )
    if not grid.samplings or not grid.batch_sizes:
        raise UserError("no load to measure: give evaluate.samplings and evaluate.batch_sizes")
    ids = [(prompt.id, prompt.turn) for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise UserError(f"prompt id {twice[0]!r} comes twice: prompts need ids of their own")
