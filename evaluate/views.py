"""What an evaluation prints: a table and a verdict for each load, and how good the proxies were."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from distill.evaluate.load import Load
from distill.evaluate.measure import Evaluation
from distill.evaluate.parts import Part
from distill.evaluate.records import Arm
from distill.evaluate.select import TableRow
from distill.evaluate.statistics import Interval
from distill.evaluate.tables import as_text

PROXY_NAMES = {
    "kl": "validation KL",
    "teacher_forced_alpha": "teacher-forced alpha",
    "agreement": "greedy agreement",
}


def load_view(load: Load, evaluation: Evaluation) -> str:
    """Candidates, the champion's domains and context buckets, and the verdict."""
    verdict, champion = evaluation.verdict, evaluation.champion
    views = [candidates_table(evaluation.table, champion.arm, load)]
    for what, found in (("domain", evaluation.domains), ("context", evaluation.buckets)):
        if len(found) > 1:
            views.append(parts_table(what, found))
    name = f"{load.sampling_name}, batch {load.batch_size}"
    text = "".join(as_text(view) for view in views)
    return f"{text}verdict: {verdict.decision} ({name}). {verdict.reason}\n"


def candidates_table(table: Sequence[TableRow], champion: Arm, load: Load) -> Table:
    """One line per candidate and k, the champion marked."""
    view = Table(
        title=f"Speculative against plain decoding, same engine and prompts: "
        f"{load.sampling_name}, batch {load.batch_size}"
    )
    view.add_column("draft", overflow="fold", min_width=18)
    for heading in (
        "k",
        "alpha",
        "accepted",
        "tokens/pass",
        "used",
        "c",
        "v",
        "v = 1",
        "predicted",
    ):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("speedup [95%]", justify="right", no_wrap=True)
    view.add_column("efficiency", justify="right", no_wrap=True)
    most = max(row.units for row in table)
    for row in table:
        won = row.arm == champion
        view.add_row(
            f"{row.candidate} ★" if won else row.candidate,
            str(row.num_draft_tokens),
            f"{row.alpha.value:.3f}",
            f"{row.alpha_empirical:.3f}",
            f"{row.tokens_per_pass:.2f}",
            f"{row.draft_utilisation:.0%}",
            f"{row.cost_ratio:.3f}",
            f"{row.verify_cost:.2f}",
            f"{row.predicted_v1:.2f}×",
            f"{row.predicted_speedup:.2f}×",
            _speedup(row.speedup),
            f"{row.engine_efficiency:.2f}",
            style="bold green" if won else "dim" if row.units < most else None,
        )
    view.caption = (
        "alpha: chance that the next drafted token is accepted, given the earlier ones were "
        "(analytic; accepted: counted). used: accepted of all drafted. c: one draft step, v: one "
        "pass over k+1 tokens, both in target steps. predicted: with v; v = 1: the paper's formula."
        " efficiency: speedup / predicted. ★ highest lower bound of speedup,"
        " or its equal with more alpha on held-out rows."
    )
    if load.confidence_threshold:
        view.caption += (
            f" k: at most; a round ends behind a token that the draft gave less than "
            f"{load.confidence_threshold:g}, and alpha is of what was tested."
        )
    if left := sum(row.units < most for row in table):
        view.caption += f" {left} of {len(table)} left the race before all prompts."
    return view


def parts_table(what: str, found: Sequence[Part]) -> Table:
    """The champion by domain or by context length."""
    view = Table(title=f"★ by {what}")
    view.add_column(what, no_wrap=True)
    for heading in ("prompts", "alpha [95%]", "tokens/pass", "speedup [95%]"):
        view.add_column(heading, justify="right", no_wrap=True)
    for part in found:
        alpha = part.alpha
        view.add_row(
            part.name,
            str(part.prompts),
            str(alpha),
            f"{part.tokens_per_pass:.2f}",
            _speedup(part.speedup),
        )
    return view


def proxies_view(proxies: Mapping[str, Any]) -> Table:
    """From the outcome's JSON."""
    view = Table(
        title=f"What ranks candidates as real decoding at k = {proxies['num_draft_tokens']}"
    )
    view.add_column("proxy", no_wrap=True)
    for heading in ("of", "Spearman", "Pearson", "candidates"):
        view.add_column(heading, justify="right", no_wrap=True)
    for one in proxies["correlations"]:
        view.add_row(
            PROXY_NAMES[one["proxy"]],
            one["measured"],
            _number(one["spearman"]),
            _number(one["pearson"]),
            str(one["candidates"]),
        )
    return view


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _speedup(value: Interval) -> str:
    return f"{value.value:.2f}× [{value.low:.2f}, {value.high:.2f}]"
