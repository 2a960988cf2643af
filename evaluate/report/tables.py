"""Tables for a person at a terminal."""

import io
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from distill.evaluate.benchmark.decoding import Line, Rate
from distill.evaluate.benchmark.loss import LossLine
from distill.evaluate.benchmark.probe import Prospect
from distill.evaluate.benchmark.signals import Fidelity
from distill.evaluate.benchmark.training_cost import bill
from distill.evaluate.compare import Comparison
from distill.evaluate.conclusion import Conclusion
from distill.evaluate.load import Load
from distill.evaluate.pooling import Part
from distill.evaluate.records import Arm
from distill.evaluate.report.formats import interval, number
from distill.evaluate.report.loads import load_name
from distill.evaluate.statistics import Interval
from distill.evaluate.table import TableRow
from distill.models.plan import DraftPlan
from distill.text import one_line, printable

PROXY_NAMES = {
    "kl": "validation KL",
    "teacher_forced_alpha": "teacher-forced alpha",
    "agreement": "greedy agreement",
}


def load_text(load: Load, conclusion: Conclusion) -> str:
    """What a load's conclusion prints: candidates, domains and buckets of the champion, verdict."""
    verdict, champion = conclusion.verdict, conclusion.champion
    views = [candidates_table(conclusion.table, champion.arm, load)]
    for what, found in (("domain", conclusion.domains), ("context", conclusion.buckets)):
        if len(found) > 1:
            views.append(parts_table(what, found))
    name = f"{load.sampling_name}, batch {load.batch_size}"
    text = "".join(as_text(view) for view in views)
    return f"{text}verdict: {verdict.decision} ({name}). {one_line(verdict.reason)}\n"


def candidates_table(table: Sequence[TableRow], champion: Arm, load: Load) -> Table:
    """One line per candidate and k, the champion marked."""
    view = Table(
        title=f"Speculative against plain decoding, same engine and prompts: "
        f"{load.sampling_name}, batch {load.batch_size}"
    )
    view.add_column("draft", overflow="fold", min_width=18)
    counted = ("k", "alpha", "by position", "tokens/pass", "used", "c", "v", "predicted")
    _number_columns(view, *counted, "decoding [95%]", "efficiency", "end to end [95%]")
    for row in table:
        won = row.arm == champion
        view.add_row(
            f"{row.candidate} ★" if won else row.candidate,
            str(row.num_draft_tokens),
            f"{row.alpha.value:.3f}",
            " ".join(f"{alpha:.2f}"[-3:] for alpha in row.alpha_at),
            f"{row.tokens_per_pass:.2f}",
            f"{row.draft_utilisation:.0%}",
            f"{row.cost_ratio:.3f}",
            f"{row.verify_cost:.2f}",
            f"{row.predicted_speedup:.2f}×",
            _speedup(row.speedup),
            f"{row.engine_efficiency:.2f}",
            _speedup(row.speedup_end_to_end),
            style="bold green" if won else None,
        )
    view.caption = _candidates_caption(load)
    return view


def _candidates_caption(load: Load) -> str:
    """What the columns of the candidates' table mean."""
    caption = (
        "alpha: chance that the next drafted token is accepted, given the earlier ones were; then "
        "that of the 1st, 2nd, … draft of a round. used: accepted of all drafted. c: one draft "
        "step, v: one pass over k+1 tokens, both in target steps. predicted: tokens/pass / (v + "
        "k·c), of decoding alone; efficiency: decoding / predicted. end to end: prompts included. "
        "The intervals hold for all lines at once. ★ highest lower bound end to end, or its equal "
        "with more agreement on held-out rows."
    )
    if load.confidence_threshold:
        caption += (
            f" k: at most; a round ends behind a token that the draft gave less than "
            f"{load.confidence_threshold:g}, and alpha is of what was tested. Only the 1st draft "
            "is never left out."
        )
    return caption


def parts_table(what: str, found: Sequence[Part]) -> Table:
    """The champion by domain or by context length."""
    view = Table(title=f"★ by {what}")
    view.add_column(what, no_wrap=True)
    _number_columns(
        view, "prompts", "alpha [95%]", "tokens/pass", "decoding [95%]", "end to end [95%]"
    )
    for part in found:
        alpha = part.alpha
        view.add_row(
            part.name,
            str(part.prompts),
            str(alpha),
            f"{part.tokens_per_pass:.2f}",
            _speedup(part.speedup),
            _speedup(part.speedup_end_to_end),
        )
    return view


def correlations_table(proxies: Mapping[str, Any]) -> Table:
    """How well each proxy ranks; `proxies` as `evaluation.json` has them."""
    view = Table(
        title=f"What ranks candidates as real decoding at k = {proxies['num_draft_tokens']}"
    )
    view.add_column("proxy", no_wrap=True)
    _number_columns(view, "of", "Spearman", "Pearson", "candidates")
    for one in proxies["correlations"]:
        view.add_row(
            PROXY_NAMES[one["proxy"]],
            one["measured"],
            _number(one["spearman"]),
            _number(one["pearson"]),
            str(one["candidates"]),
        )
    return view


def comparison_table(comparison: Comparison) -> Table:
    """Two evaluations side by side, one line per load."""
    record = comparison.as_json()
    view = Table(title=f"A: {comparison.names[0]}\nB: {comparison.names[1]}")
    view.add_column("load", no_wrap=True)
    for heading in ("prompts (–)", "speedup", "B / A", "alpha B − A", "tokens/pass B − A"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    for contrast, load in zip(comparison.loads, record["loads"], strict=True):
        a, b = load["first"], load["second"]
        view.add_row(
            load_name(load),
            f"{load['turns']} ({a['dropped']}, {b['dropped']})",
            f"{number(a['speedup']['value'])}, {number(b['speedup']['value'])}",
            interval(load["speedup_ratio"]),
            interval(load["alpha_change"]),
            interval(load["tokens_per_pass_change"]),
            contrast.conclusion,
        )
    view.caption = (
        "Pairs of numbers: of A, of B. Their champions, over prompts that both decoded; (–): the "
        "dropped ones. Brackets: paired 95% intervals over independent prompts."
    )
    return view


def bills_table(plans: Mapping[str, DraftPlan], tokens: int, teraflops: float) -> Table:
    """The plan on paper, one line per draft."""
    view = Table(title=f"On paper: {tokens / 1e6:,.0f} M training tokens at {teraflops:g} TFLOP/s")
    view.add_column("draft (layers × hidden)", overflow="fold")
    _number_columns(view, "parameters", "of target", "MB/token", "GFLOP/token")
    _number_columns(view, "GPU-hours", "draft on disk", "token ids", "top-64 cache")
    for name, plan in plans.items():
        cost = bill(plan, tokens, teraflops)
        view.add_row(
            name,
            f"{plan.parameters / 1e6:.1f} M",
            f"{plan.ratio:.3f}",
            f"{plan.bytes_per_token / 1e6:.1f}",
            f"{cost.flops_per_training_token / 1e9:.2f}",
            f"{cost.gpu_seconds / 3600:.2f}",
            f"{cost.draft_bytes / 1e6:.0f} MB",
            f"{cost.corpus_bytes / 1e9:.1f} GB",
            f"{cost.signal_bytes / 1e9:.1f} GB",
        )
    view.caption = (
        "MB/token: weights that one draft step reads in bfloat16. GFLOP/token: 2 × target (the "
        "teacher's pass) + 6 × draft parameters; attention over the context left out."
    )
    return view


def prospects_table(prospects: Sequence[Prospect], alphas: Sequence[float]) -> Table:
    """Predicted speedup of each draft under each load, by alpha."""
    view = Table(title="Predicted speedup by alpha, from times measured here with random weights")
    view.add_column("draft", no_wrap=True)
    for heading in ("batch", "context", "target ms", "draft ms", "c", "v(k)", "breaks even"):
        view.add_column(heading, justify="right", no_wrap=True)
    for alpha in alphas:
        view.add_column(f"α {alpha:g}", justify="right", no_wrap=True)
    _number_columns(view, "ceiling")
    for one in prospects:
        first, last = min(one.costs), max(one.costs)
        even = one.break_even
        view.add_row(
            f"{one.draft} ({one.parameters / 1e6:.1f} M)",
            str(one.setting.batch_size),
            str(one.setting.context),
            f"{one.target_seconds * 1e3:.1f}",
            f"{one.draft_seconds * 1e3:.2f}",
            f"{one.costs[first].c:.3f}",
            f"{one.costs[first].v:.2f}…{one.costs[last].v:.2f}",
            f"α {even.alpha:.2f}" if even else "never",
            *[f"{one.at(alpha):.2f}× k{one.best_k(alpha)}" for alpha in alphas],
            f"{one.ceiling:.2f}×",
        )
    view.caption = (
        "c: one draft step, v(k): one pass over k+1 tokens (least to most k), both in target steps."
        " Each speedup is at its best k. ceiling: a perfect draft."
    )
    return view


def decoding_table(lines: Sequence[Line]) -> Table:
    """Tokens per second here and in transformers, and the engine against its prediction."""
    view = Table(title="Greedy decoding, tokens/s: median (lowest to highest), prompts included")
    rates = ("batch", "generate", "plain here", "ratio", "k", "assisted", "speculative here")
    ratios = ("ratio", "alpha", "tokens/pass", "c", "v", "speedup", "predicted", "efficiency")
    _number_columns(view, *rates, *ratios)
    for line in lines:
        assisted = line.assisted
        view.add_row(
            str(line.batch_size),
            _rate(line.generate),
            _rate(line.plain),
            f"{line.plain.over(line.generate):.2f}×",
            str(line.num_draft_tokens),
            _rate(assisted) if assisted else "–",
            _rate(line.speculative),
            f"{line.speculative.over(assisted):.2f}×" if assisted else "–",
            f"{line.alpha:.3f}",
            f"{line.tokens_per_pass:.2f}",
            f"{line.cost.c:.3f}",
            f"{line.cost.v:.2f}",
            f"{line.speedup:.2f}×",
            f"{line.predicted:.2f}×",
            f"{line.efficiency:.2f}",
        )
    view.caption = (
        "ratio: here over transformers, runs of one place in A B B A. assisted: transformers' "
        "assisted generation, one prompt at a time. speedup: over plain here, decoding alone. "
        "predicted: tokens/pass / (v + k·c), c one draft step and v one pass over k+1 tokens, in "
        "steps of plain decoding, from the same runs. efficiency: speedup / predicted."
    )
    return view


def training_table(found: Mapping[str, Any]) -> Table:
    """One line per arm; ratios of rates at the same place of A B B A, and of median peaks.

    `live` is this trainer with the target beside the draft, then with cached signals.
    """
    view = Table(title="Training: median (lowest to highest)")
    _number_columns(view, "arm", "tokens/s", "live over it", "peak MB", "it over live")
    rates = {name: Rate(arm["rates"]) for name, arm in found["arms"].items()}
    peaks = {name: [n / 1e6 for n in arm["peak_bytes"]] for name, arm in found["arms"].items()}
    for name in rates:
        view.add_row(
            name,
            _rate(rates[name]),
            f"{rates['live'].over(rates[name]):.2f}×",
            f"{median(peaks[name]):.0f} ({min(peaks[name]):.0f}–{max(peaks[name]):.0f})",
            f"{median(peaks[name]) / median(peaks['live']):.2f}×",
        )
    if found["same_update"] is None:
        view.caption = "benchmark.trl_python is null: TRL's arm was left out."
    else:
        view.caption = f"The arms' updates of the draft have cosine {found['same_update']:.4f}."
    return view


def loss_table(lines: Sequence[LossLine]) -> Table:
    """One line per divergence, dtype and pair of heads."""
    view = Table(title="Fused loss with its gradients: median (lowest to highest)")
    headings = ("ids", "draft", "target", "products in", "divergence", "tokens/s", "share")
    _number_columns(view, *headings, "of the fastest")
    for line in lines:
        shapes, shares = line.shapes, line.times.shares
        view.add_row(
            str(shapes.vocabulary_size),
            str(shapes.width),
            str(shapes.target_width),
            line.compute,
            line.divergence,
            f"{shapes.tokens / median(line.times.loss):.0f}",
            f"{median(shares):.2f} ({min(shares):.2f}–{max(shares):.2f})",
            f"{line.times.undisturbed_share:.2f}",
        )
    view.caption = (
        "draft, target: widths of their heads. share: time of the matrix products alone over the "
        "loss's, runs next to each other; 1 would be a loss that costs nothing besides. of the "
        "fastest: of the two fastest runs, which other jobs disturbed least."
    )
    return view


def fidelity_table(found: Sequence[Fidelity]) -> Table:
    """One line per codec of the target's signal."""
    view = Table(title="Cached signals: the draft's gradient against the exact one")
    view.add_column("signal", no_wrap=True)
    _number_columns(view, "bytes/token", "angle", "angle of mean", "norm ratio", "noise")
    for one in found:
        view.add_row(
            one.codec,
            f"{one.bytes_per_token:.0f}",
            f"{one.angle:.2f}°",
            f"{one.bias_angle:.2f}°",
            f"{one.norm_ratio:.4f}",
            f"{one.noise:.4f}",
        )
    view.caption = (
        "angle: of one encoding's gradient to the exact one. Of the mean over encodings: bias, and "
        "what noise/√repetitions leaves. noise: in lengths of the exact gradient."
    )
    return view


def as_text(table: Table, width: int = 138) -> str:
    """The table as plain text, the same in a file as on any terminal."""
    # Names in the cells come from data: `[/INST]` is no markup, `:x:` no emoji.
    plain = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    with plain as console, console.capture() as captured:
        console.print(table)
    return printable(captured.get())


def _number_columns(view: Table, *headings: str) -> None:
    for heading in headings:
        view.add_column(heading, justify="right", no_wrap=True)


def _rate(rate: Rate) -> str:
    return f"{rate.median:.1f} ({rate.low:.1f}–{rate.high:.1f})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _speedup(value: Interval) -> str:
    return f"{value.value:.2f}× [{value.low:.2f}, {value.high:.2f}]"
