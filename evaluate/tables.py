"""Tables for a person at a terminal."""

import io
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from distill.evaluate.benchmark import Line, Rate
from distill.evaluate.codecs import Fidelity
from distill.evaluate.probe import Prospect
from distill.evaluate.products import LossLine
from distill.evaluate.selection import Choice


def fidelity_table(found: Sequence[Fidelity]) -> Table:
    """One line per codec of the target's signal."""
    view = Table(title="Cached signals: the draft's gradient against the exact one")
    view.add_column("signal", no_wrap=True)
    for heading in ("bytes/token", "angle", "angle of mean", "norm ratio", "noise"):
        view.add_column(heading, justify="right", no_wrap=True)
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


def prospects_table(prospects: Sequence[Prospect], alphas: Sequence[float]) -> Table:
    """What each draft could gain under each load, by alpha."""
    view = Table(title="Predicted speedup by alpha, from times measured here with random weights")
    view.add_column("draft", no_wrap=True)
    for heading in ("batch", "context", "target ms", "draft ms", "c", "v(k)", "breaks even"):
        view.add_column(heading, justify="right", no_wrap=True)
    for alpha in alphas:
        view.add_column(f"α {alpha:g}", justify="right", no_wrap=True)
    view.add_column("ceiling", justify="right", no_wrap=True)
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
    for heading in (
        "batch",
        "generate",
        "plain here",
        "ratio",
        "k",
        "assisted",
        "speculative here",
    ):
        view.add_column(heading, justify="right", no_wrap=True)
    for heading in (
        "ratio",
        "alpha",
        "tokens/pass",
        "c",
        "v",
        "speedup",
        "predicted",
        "efficiency",
    ):
        view.add_column(heading, justify="right", no_wrap=True)
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
    """One line per arm. Ratios: of rates at the same place of A B B A; of median peaks.

    `live` is this trainer with the target beside the draft, then with cached signals.
    """
    view = Table(title="Training: median (lowest to highest)")
    for heading in ("arm", "tokens/s", "live over it", "peak MB", "it over live"):
        view.add_column(heading, justify="right", no_wrap=True)
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
    for heading in (*headings, "of the fastest"):
        view.add_column(heading, justify="right", no_wrap=True)
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


def selection_table(choices: Sequence[Choice], best: str) -> Table:
    """One line per way to choose."""
    view = Table(title="Choosing a champion: target passes, against decoding everything")
    view.add_column("way", no_wrap=True)
    for heading in ("candidates", "passes", "same champion", "speed kept"):
        view.add_column(heading, justify="right", no_wrap=True)
    for one in choices:
        view.add_row(
            one.way,
            str(one.decoded),
            f"{one.passes_share:.2f} ({one.passes_low:.2f}–{one.passes_high:.2f})",
            f"{one.same:.0%}",
            f"{one.kept:.3f}",
        )
    view.caption = (
        f"Decoding everything names {best}. Median (least to most) over orders of the prompts; "
        "speed kept: decoding speed of the named ones over that champion's, in the mean."
    )
    return view


def as_text(table: Table, width: int = 138) -> str:
    """The table as plain text, the same in a file as on any terminal."""
    with Console(file=io.StringIO(), width=width) as console, console.capture() as captured:
        console.print(table)
    return captured.get()


def _rate(rate: Rate) -> str:
    return f"{rate.median:.1f} ({rate.low:.1f}–{rate.high:.1f})"
