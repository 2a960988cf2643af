"""The figures of speed: by k, by batch size, and how far the timings spread.

All take the parts of `evaluation.json` (see `evaluate.outcome`) or measurements, and give None
where there is nothing to draw.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator

from distill.evaluate.records import PLAIN, Measurement
from distill.evaluate.report.drawing import (
    INK,
    Plot,
    axes,
    error_bars,
    legend,
    line_at_one,
    series,
)
from distill.evaluate.report.formats import number_of
from distill.evaluate.report.loads import (
    Record,
    batch_name,
    by_k,
    by_sampling,
    champion_arms,
    load_name,
)


def speedup_by_k(evaluation: Record, loads: Sequence[Record]) -> Plot:
    """Measured with intervals, predicted as a dashed line; one series per load."""
    said = []
    with axes() as (view, svg):
        for index, load in enumerate(loads):
            arms = champion_arms(evaluation, load)
            ks = np.array([arm["num_draft_tokens"] for arm in arms], dtype=float)
            shift = 0.05 * (index - (len(loads) - 1) / 2)
            error_bars(view, ks + shift, [arm["speedup"] for arm in arms], index, batch_name(load))
            view.plot(
                ks + shift,
                [number_of(arm["predicted_speedup"]) for arm in arms],
                "--",
                color=series(index)["color"],
                linewidth=1.2,
                label="predicted" if index == len(loads) - 1 else None,
            )
            said.append(f"{load_name(load)}: {by_k(arms, 'speedup')}")
        line_at_one(view)
        view.set(xlabel="drafted tokens per round, k", ylabel="speedup, ×")
        view.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(view)
        return Plot(
            f"Speedup by k, {loads[0]['sampling']}",
            f"Speedup over plain decoding by drafted tokens per round. {'. '.join(said)}.",
            svg(),
            "Points: measured, with 95% intervals. Dashed: predicted from alpha and step times. "
            "Below the line at 1 the draft slows the target down.",
        )


def speedup_by_batch(evaluation: Record) -> Plot | None:
    """The champion of every load against its batch size; None for a single batch size."""
    loads = evaluation["loads"]
    sizes = sorted({load["batch_size"] for load in loads})
    if len(sizes) < 2:
        return None
    said = []
    with axes() as (view, svg):
        for index, sampling in enumerate(by_sampling(loads)):
            mine = sorted(by_sampling(loads)[sampling], key=lambda load: load["batch_size"])
            places = [sizes.index(load["batch_size"]) + 0.06 * index for load in mine]
            values = [_speedup(load) for load in mine]
            error_bars(view, places, values, index, sampling, line=True)
            texts = [
                f"batch {m['batch_size']} {v['value']:.2f}"
                for m, v in zip(mine, values, strict=True)
            ]
            said.append(f"{sampling}: {', '.join(texts)}")
        line_at_one(view)
        view.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        view.set(xlabel="prompts decoded at a time (batch size)", ylabel="speedup, ×")
        legend(view)
        return Plot(
            "Speedup by batch size",
            f"Speedup of the best k by batch size. {'. '.join(said)}.",
            svg(),
            "At the best k of each load. Larger batches leave the target less idle time.",
        )


def times(rows: Sequence[Measurement], load: Record) -> Plot:
    """Milliseconds per token of plain decoding and of the champion at every k, over its clocks."""
    mine = [
        row
        for row in rows
        if (row.sampling, row.batch_size) == (load["sampling"], load["batch_size"])
        and row.candidate in (PLAIN, load["draft"])
    ]
    arms = sorted({row.num_draft_tokens for row in mine})
    spread = [_per_token([row for row in mine if row.num_draft_tokens == k]) for k in arms]
    names = ["plain" if k == 0 else f"k = {k}" for k in arms]
    with axes(1.2 + 0.4 * len(arms)) as (view, svg):
        drawn = view.boxplot(
            spread, orientation="horizontal", tick_labels=names, widths=0.55, patch_artist=True
        )
        for part in ("whiskers", "caps", "medians"):
            for line in drawn[part]:
                line.set_color(INK)
        for index, box in enumerate(drawn["boxes"]):
            box.set(facecolor=series(min(index, 1))["color"], edgecolor=INK, alpha=0.75)
        for flier in drawn["fliers"]:
            flier.set(markeredgecolor=INK, markersize=4)
        view.invert_yaxis()
        view.set_xlabel("milliseconds per token and row")
        medians = [f"{n} {np.median(s):.1f}" for n, s in zip(names, spread, strict=True)]
        return Plot(
            "Spread of the timings",
            f"Milliseconds per token, medians: {', '.join(medians)}.",
            svg(),
            f"{load_name(load)}: one value per timed decoding. Box: middle half, line: median, "
            "whiskers: to 1.5 times the box.",
        )


def _per_token(rows: list[Measurement]) -> list[float]:
    """Milliseconds per committed token of every clock: its rows share it."""
    clocks: dict[tuple[str, int], tuple[float, int]] = {}
    for row in rows:
        seconds, tokens = clocks.get((row.unit, row.repetition), (0.0, 0))
        clocks[row.unit, row.repetition] = seconds + row.decode_seconds, tokens + row.committed
    return [1000 * seconds / tokens for seconds, tokens in clocks.values() if tokens]


def _speedup(load: Record) -> Record:
    return {"value": load["speedup"], "low": load["speedup_low"], "high": load["speedup_high"]}
