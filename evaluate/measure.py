"""The evaluation of candidates, whole: decode, pool, choose, judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.errors import UserError
from distill.evaluate.racing import race
from distill.evaluate.records import PLAIN, Arm, Measurement, Prompt, write_rows
from distill.evaluate.select import TableRow, champion, tabulate
from distill.evaluate.speed import Bench, Load, Progress, measure
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.verdict import Verdict, judge
from distill.speculative import Drafter, ModelDrafter, Sampling

MEASUREMENTS = "measurements.parquet"


@dataclass(frozen=True)
class Evaluation:
    """rows: every measurement; table: pooled, one line per candidate and k."""

    rows: list[Measurement]
    table: list[TableRow]
    champion: TableRow
    verdict: Verdict

    def summary(self) -> dict[str, Any]:
        """The champion's numbers as a flat mapping of JSON values."""
        best, verdict = self.champion, self.verdict
        return {
            "draft": best.candidate,
            "num_draft_tokens": best.num_draft_tokens,
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
    num_draft_tokens: Sequence[int],
    sampling: Sampling,
    *,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    batch_size: int,
    vocabulary_size: int,
    seed: int,
    folder: Path,
    bootstrap: int,
    margin: float,
    progress: Progress,
    racing: bool = False,
) -> Evaluation:
    """Decode `prompts` with the target alone and with every candidate at every k, and judge.

    A candidate is a draft model or a drafter. Rows are kept under `folder`/batches as they come;
    the same call goes on after a kill; all rows end in `folder`/measurements.parquet. UserError for
    an empty list of prompts, candidates or k, a k below 1, or a prompt id that comes twice.
    racing: candidates that can no longer win stop decoding.
    """
    _check(candidates, prompts, num_draft_tokens)
    bench = Bench(target, {name: _drafter(one) for name, one in candidates.items()})
    load = Load(sampling, max_new_tokens, tuple(eos_token_ids), batch_size, vocabulary_size, seed)
    arms = [Arm(name, k) for name in candidates for k in num_draft_tokens]
    pooling = Bootstrap(bootstrap, seed)
    entrants = race(arms, pooling) if racing else lambda _: arms
    rows = measure(bench, prompts, entrants, load, folder / "batches", progress)
    write_rows(folder / MEASUREMENTS, rows)
    return conclude(rows, pooling, margin)


def conclude(rows: list[Measurement], bootstrap: Bootstrap, margin: float) -> Evaluation:
    """Pool rows of one setting, however they were gathered, and judge."""
    table = tabulate(rows, bootstrap)
    best = champion(table)
    return Evaluation(rows, table, best, judge(best, table, margin))


def _drafter(candidate: PreTrainedModel | Drafter) -> Drafter:
    return ModelDrafter(candidate) if isinstance(candidate, PreTrainedModel) else candidate


def _check(
    candidates: Mapping[str, PreTrainedModel | Drafter],
    prompts: Sequence[Prompt],
    num_draft_tokens: Sequence[int],
) -> None:
    if not candidates:
        raise UserError("no candidate to measure: name drafts in evaluate.candidates or train one")
    if PLAIN in candidates:
        raise UserError(f"{PLAIN!r} is the target's own decoding: give that candidate another name")
    if not prompts:
        raise UserError("no prompts are left to decode: widen the filter or the held-out part")
    if not num_draft_tokens or min(num_draft_tokens) < 1:
        raise UserError(
            f"evaluate.num_draft_tokens is {list(num_draft_tokens)}: "
            "give at least one k, each at least 1"
        )
    ids = [prompt.id for prompt in prompts]
    if len(set(ids)) < len(ids):
        twice = next(one for one in ids if ids.count(one) > 1)
        raise UserError(f"prompt id {twice!r} comes twice: prompts need ids of their own")
