"""The figures of decoding: speed, acceptance, tokens per pass, times.

All take the parts of `evaluation.json` (see `evaluate.outcome`) or measurements, and give None
where there is nothing to draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
    number_of,
    series,
)
from distill.speculative.prediction import expected_tokens

Record = Mapping[str, Any]


def load_name(load: Record) -> str:
    """A load in words: `greedy, 1 at a time`."""
    return f"{load['sampling']}, {batch_name(load)}"


def batch_name(load: Record) -> str:
    return f"{load['batch_size']} at a time"


def by_sampling(loads: Sequence[Record]) -> dict[str, list[Record]]:
    """Loads by their sampling setting, in the configured order."""
    found: dict[str, list[Record]] = {}
    for load in loads:
        found.setdefault(load["sampling"], []).append(load)
    return found


def champion_arms(evaluation: Record, load: Record) -> list[Record]:
    """The load's champion at every k that was measured, by k."""
    arms = [
        arm
        for arm in evaluation["table"]
        if (arm["sampling"], arm["batch_size"]) == (load["sampling"], load["batch_size"])
        and arm["candidate"] == load["draft"]
    ]
    return sorted(arms, key=lambda arm: arm["num_draft_tokens"])


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
            said.append(f"{load_name(load)}: {_list(arms, 'num_draft_tokens', 'speedup', 'k = ')}")
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


def alpha_by_domain(evaluation: Record) -> Plot | None:
    parts = [part for part in evaluation["domains"] if part["alpha"]["value"] is not None]
    if not parts:
        return None
    parts = sorted(parts, key=lambda part: part["alpha"]["value"])
    with axes(1.2 + 0.34 * len(parts)) as (view, svg):
        values = [part["alpha"] for part in parts]
        places = np.arange(len(parts))
        error_bars(view, places, values, 0, "alpha", across=True)
        if (needed := evaluation["break_even_alpha"]) is not None:
            view.axvline(needed, color=INK, linestyle=":", label=f"breaks even, {needed:.2f}")
            legend(view)
        view.set_yticks(places, [f"{part['name']} ({part['prompts']})" for part in parts])
        view.set_ylim(-0.6, len(parts) - 0.4)
        view.set_xlabel("alpha (prompts in brackets)")
        return Plot(
            "Alpha by domain",
            "Acceptance probability by domain: "
            + ", ".join(f"{part['name']} {part['alpha']['value']:.2f}" for part in reversed(parts)),
            svg(),
            "Chance that a drafted token is accepted, given the earlier ones were; 95% intervals.",
        )


def alpha_by_position(evaluation: Record) -> Plot:
    """For the largest k of the champion at every sampling setting's first batch size."""
    said = []
    with axes() as (view, svg):
        for index, (load, *_) in enumerate(by_sampling(evaluation["loads"]).values()):
            arm = champion_arms(evaluation, load)[-1]
            places = np.arange(1, len(arm["alpha_at"]) + 1)
            values = [number_of(alpha) for alpha in arm["alpha_at"]]
            view.plot(places, values, label=load_name(load), **series(index))
            said.append(f"{load_name(load)}: {', '.join(f'{value:.2f}' for value in values)}")
        view.set(xlabel="place in the round", ylabel="alpha", ylim=(0, 1))
        view.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(view)
        return Plot(
            "Alpha by place in the round",
            f"Acceptance probability of the first, second, … drafted token. {'. '.join(said)}.",
            svg(),
            "Each place given that all before it were accepted. Flat: a longer round stays as "
            "good; falling: the draft loses track.",
        )


def tokens_by_k(evaluation: Record) -> Plot:
    """Of the champion at every sampling setting's first batch size, and by the formula."""
    said = []
    loads = [first for first, *_ in by_sampling(evaluation["loads"]).values()]
    with axes() as (view, svg):
        for index, load in enumerate(loads):
            arms = champion_arms(evaluation, load)
            ks = [arm["num_draft_tokens"] for arm in arms]
            view.plot(
                ks,
                [arm["tokens_per_pass"] for arm in arms],
                linestyle="none",
                label=load_name(load),
                **series(index),
            )
            formula = [_expected(arm) for arm in arms]
            last = index == len(loads) - 1
            view.plot(
                ks,
                formula,
                "--",
                color=series(index)["color"],
                linewidth=1.2,
                label="from alpha" if last else None,
            )
            said.append(
                f"{load_name(load)}: {_list(arms, 'num_draft_tokens', 'tokens_per_pass', 'k = ')}"
            )
        view.set(xlabel="drafted tokens per round, k", ylabel="tokens per target pass")
        view.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(view)
        return Plot(
            "Tokens per target pass",
            f"Tokens committed per target pass by k. {'. '.join(said)}.",
            svg(),
            "Plain decoding makes 1. Dashed: (1 − αᵏ⁺¹) / (1 − α) with the measured alpha.",
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


def _expected(arm: Record) -> float:
    alpha = arm["alpha"]["value"]
    return np.nan if alpha is None else expected_tokens(min(alpha, 1.0), arm["num_draft_tokens"])


def _list(arms: Sequence[Record], key: str, what: str, word: str) -> str:
    def value(arm: Record) -> float:
        found = arm[what]
        return number_of(found["value"] if isinstance(found, Mapping) else found)

    return ", ".join(f"{word}{arm[key]} {value(arm):.2f}" for arm in arms)
