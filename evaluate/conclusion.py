"""What the rows of one load say: pooled, the champion chosen, the verdict given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from distill.evaluate.pooling import Part, parts
from distill.evaluate.records import Measurement
from distill.evaluate.statistics import Bootstrap
from distill.evaluate.table import TableRow, champion, tabulate
from distill.evaluate.verdict import Verdict, judge


@dataclass(frozen=True)
class Bar:
    """What a draft must reach to be served: margin overall, floors by domain."""

    bootstrap: Bootstrap
    margin: float = 1.0
    floors: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Conclusion:
    """What was found at one load.

    rows: every measurement. table: the rows pooled, one line per candidate and k. domains, buckets:
    the champion within each domain and each context-length bucket.
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


def conclude(
    rows: list[Measurement], bar: Bar, held_out: Mapping[str, float] = MappingProxyType({})
) -> Conclusion:
    """Pool rows of one load, however they were gathered, choose and judge.

    held_out: teacher-forced alpha by candidate, which decides between equals (`champion`).
    """
    table = tabulate(rows, bar.bootstrap)
    best = champion(table, rows, held_out, bar.bootstrap)
    domains = parts(rows, best.arm, lambda row: row.domain, bar.bootstrap)
    domains.sort(key=lambda part: part.name)
    buckets = parts(rows, best.arm, lambda row: row.bucket, bar.bootstrap)
    verdict = judge(best, table, bar.margin, bar.floors, domains)
    return Conclusion(rows, table, best, verdict, domains, buckets)
