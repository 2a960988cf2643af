"""The figures of acceptance: alpha by domain and by place in the round, tokens per target pass.

All take the parts of `evaluation.json` (see `evaluate.outcome`) and give None where there is
nothing to draw.
"""

import numpy as np
from matplotlib.ticker import MaxNLocator

from distill.evaluate.report.drawing import (
    INK,
    Plot,
    axes,
    error_bars,
    legend,
    series,
)
from distill.evaluate.report.formats import number_of
from distill.evaluate.report.loads import Record, by_k, by_sampling, champion_arms, load_name


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
            formula = [number_of(arm["expected_tokens"]) for arm in arms]
            last = index == len(loads) - 1
            view.plot(
                ks,
                formula,
                "--",
                color=series(index)["color"],
                linewidth=1.2,
                label="from alpha" if last else None,
            )
            said.append(f"{load_name(load)}: {by_k(arms, 'tokens_per_pass')}")
        view.set(xlabel="drafted tokens per round, k", ylabel="tokens per target pass")
        view.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(view)
        return Plot(
            "Tokens per target pass",
            f"Tokens committed per target pass by k. {'. '.join(said)}.",
            svg(),
            "Plain decoding makes 1. Dashed: what the measured alpha makes one expect, "
            "(1 − αᵏ⁺¹) / (1 − α) for a fixed k.",
        )
