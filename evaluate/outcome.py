"""What an evaluation found, as JSON: `evaluation.json`, beside measurements.parquet.

A load is a sampling setting at a batch size. The first one configured decides: its champion's
numbers and verdict stand at the top level too. An interval is {"value", "low", "high", "error"},
of 95%; the standard error is on the logarithm or logit on which the bounds were made. null stands
where nothing was counted. more_units: independent prompts or batches that *ship* lacks.

Top level:
    sampling, batch_size, draft, num_draft_tokens, confidence_threshold, alpha, alpha_low,
    alpha_high, alpha_empirical, tokens_per_pass, draft_utilisation, cost_ratio, verify_cost,
    speedup, speedup_low, speedup_high (of decoding), speedup_end_to_end, speedup_end_to_end_low,
    speedup_end_to_end_high, predicted_speedup, engine_efficiency, verdict, reason,
    break_even_alpha, best_k, more_units, draft_weights_sha256, parameter_ratio
        flat numbers and texts, of the champion of the first load
    loads         [load], in the configured order
    domains       [part], by name, of the first load's champion
    calibration   [line], one per load and k of the load's champion: predicted against measured
    proxies       null below 3 decoded candidates, else {"sampling", "batch_size",
                  "num_draft_tokens", "points": [point], "correlations": [correlation]}
    table         [arm], one per load, candidate and k
    candidates    [candidate], all that were considered, in training order
    prompts       {"conversations", "turns", "too_long", "unusable" (by the chat template),
                  "domains": {domain: conversations}}
    target        {"id" (what a server calls it), "weights_sha256", "parameters"}

load:
    sampling, batch_size, every flat key from `draft` to `best_k`, and
    floors [floor], domains [part], buckets [part] (shortest first)
part:         one domain or context-length bucket, of the load's champion
    name, prompts (turns counted), units, alpha, speedup, speedup_end_to_end (intervals),
    tokens_per_pass
floor:        domain, floor, decision ("ship" where it holds), speedup (interval)
line:
    sampling, batch_size, candidate, num_draft_tokens, alpha, cost_ratio, verify_cost,
    predicted_v1 (v = 1, the paper's formula), predicted (with v), measured (interval), efficiency
arm:          everything of `table.TableRow`: alpha and the speedups as intervals, the rest plain
    sampling, batch_size, candidate, num_draft_tokens, confidence_threshold, units, alpha,
    alpha_empirical, tokens_per_pass, draft_utilisation, cost_ratio, verify_cost, expected_tokens,
    drafts_per_pass, predicted_speedup, speedup, speedup_end_to_end, engine_efficiency,
    tested_at [k], alpha_at [k]
candidate:    name, weights_sha256, parameters, tokens (trained, null if unknown),
              kl, alpha, agreement (teacher-forced on validation rows, null if not measured),
              decoded (false: screened out)
point:        candidate, kl, agreement, teacher_forced_alpha, alpha, speedup
correlation:  proxy ("kl", "teacher_forced_alpha", "agreement"), measured ("alpha", "speedup"),
              spearman, pearson, candidates
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isnan
from typing import Any

from distill.evaluate.candidates import HeldOutScores
from distill.evaluate.conclusion import Conclusion
from distill.evaluate.correlation import correlate
from distill.evaluate.load import Load
from distill.evaluate.table import TableRow

FILE = "evaluation.json"
ONLY_IN_FILE = ("table", "candidates", "prompts", "target")
"""A job's summary.json holds everything else."""


@dataclass(frozen=True)
class Considered:
    """A candidate, decoded or not.

    tokens: how many it was trained on, None if unknown. held_out: None if not measured.
    """

    name: str
    weights_sha256: str
    parameters: int
    tokens: int | None
    held_out: HeldOutScores | None


@dataclass(frozen=True)
class Evaluation:
    """All that is known at the end: every load with its conclusion, every candidate, the rest."""

    loads: Sequence[tuple[Load, Conclusion]]
    considered: Sequence[Considered]
    prompts: Mapping[str, Any]
    target: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The layout above; NaN as null."""
        first, conclusion = self.loads[0]
        loads = [_load(load, one) for load, one in self.loads]
        best = next(c for c in self.considered if c.name == conclusion.champion.candidate)
        return _clean(
            {
                **_setting(first),
                **conclusion.summary(),
                "draft_weights_sha256": best.weights_sha256,
                "parameter_ratio": best.parameters / self.target["parameters"],
                "loads": loads,
                "domains": loads[0]["domains"],
                "calibration": [line for load, one in self.loads for line in _lines(load, one)],
                "proxies": self._proxies(),
                "table": [
                    {**_setting(load), **asdict(row)}
                    for load, one in self.loads
                    for row in one.table
                ],
                "candidates": [_candidate(c, conclusion.table) for c in self.considered],
                "prompts": dict(self.prompts),
                "target": dict(self.target),
            }
        )

    def _proxies(self) -> dict[str, Any] | None:
        load, conclusion = self.loads[0]
        scores = {c.name: c.held_out for c in self.considered if c.held_out is not None}
        k = conclusion.champion.num_draft_tokens
        found = correlate([r for r in conclusion.table if r.num_draft_tokens == k], scores)
        return found and {**_setting(load), "num_draft_tokens": k, **asdict(found)}


@dataclass(frozen=True)
class Outcome:
    """What other stages read of an evaluation: its verdict and the champion of the first load.

    turns: prompts that were decoded. The bounds are of 95% intervals; None: nothing was counted.
    """

    verdict: str
    draft: str
    draft_weights_sha256: str
    num_draft_tokens: int
    turns: int
    alpha: float | None
    alpha_low: float | None
    alpha_high: float | None
    speedup: float
    speedup_low: float
    speedup_high: float

    @classmethod
    def from_json(cls, evaluation: Mapping[str, Any]) -> "Outcome":
        """From the content of `evaluation.json`."""
        known = {**evaluation, "turns": evaluation["prompts"]["turns"]}
        return cls(**{field.name: known[field.name] for field in fields(cls)})


def _load(load: Load, conclusion: Conclusion) -> dict[str, Any]:
    return {
        **_setting(load),
        **conclusion.summary(),
        "floors": [asdict(floor) for floor in conclusion.verdict.floors],
        "domains": [asdict(part) for part in conclusion.domains],
        "buckets": [asdict(part) for part in conclusion.buckets],
    }


def _setting(load: Load) -> dict[str, Any]:
    return {"sampling": load.sampling_name, "batch_size": load.batch_size}


def _lines(load: Load, conclusion: Conclusion) -> list[dict[str, Any]]:
    """What the formulas say of the champion's draft at each k, and what was measured."""
    draft = conclusion.champion.candidate
    return [
        {
            **_setting(load),
            "candidate": row.candidate,
            "num_draft_tokens": row.num_draft_tokens,
            "alpha": row.alpha.value,
            "cost_ratio": row.cost_ratio,
            "verify_cost": row.verify_cost,
            "predicted_v1": row.predicted_v1,
            "predicted": row.predicted_speedup,
            "measured": asdict(row.speedup),
            "efficiency": row.engine_efficiency,
        }
        for row in conclusion.table
        if row.candidate == draft
    ]


def _candidate(one: Considered, table: Sequence[TableRow]) -> dict[str, Any]:
    unknown = {"kl": None, "alpha": None, "agreement": None}
    return {
        "name": one.name,
        "weights_sha256": one.weights_sha256,
        "parameters": one.parameters,
        "tokens": one.tokens,
        **(asdict(one.held_out) if one.held_out else unknown),
        "decoded": any(row.candidate == one.name for row in table),
    }


def _clean(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: _clean(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value
