"""The page and the table of two evaluations side by side."""

from typing import Any

from matplotlib.axes import Axes
from rich.table import Table

from distill.evaluate.compare import Comparison
from distill.evaluate.report.drawing import FAINT, Plot, axes, error_bars, legend
from distill.evaluate.report.loads import load_name
from distill.evaluate.report.page import interval, number, render

Record = dict[str, Any]


def render_comparison(comparison: Comparison) -> str:
    """One self-contained page."""
    record = comparison.as_json()
    for load in record["loads"]:
        load["conclusion"] = conclusion(load)
    figures = [_speedups(record), _ratio(record)]
    return render("comparison.html.jinja", comparison=record, figures=figures)


def comparison_view(comparison: Comparison) -> Table:
    """One line per load, for a terminal."""
    record = comparison.as_json()
    view = Table(title=f"A: {comparison.names[0]}\nB: {comparison.names[1]}")
    view.add_column("load", no_wrap=True)
    for heading in ("prompts (–)", "speedup", "B / A", "alpha B − A", "tokens/pass B − A"):
        view.add_column(heading, justify="right", no_wrap=True)
    view.add_column("", no_wrap=True)
    for load in record["loads"]:
        a, b = load["first"], load["second"]
        view.add_row(
            load_name(load),
            f"{load['turns']} ({a['dropped']}, {b['dropped']})",
            f"{number(a['speedup']['value'])}, {number(b['speedup']['value'])}",
            interval(load["speedup_ratio"]),
            interval(load["alpha_change"]),
            interval(load["tokens_per_pass_change"]),
            conclusion(load),
        )
    view.caption = (
        "Pairs of numbers: of A, of B. Their champions, over prompts that both decoded; (–): the "
        "dropped ones. Brackets: paired 95% intervals, bootstrapped over prompts."
    )
    return view


def conclusion(load: Record) -> str:
    """What the interval of the ratio says, in one word or two."""
    if load["speedup_ratio"]["low"] > 1:
        return "B is faster"
    return "A is faster" if load["speedup_ratio"]["high"] < 1 else "undecided"


def _speedups(record: Record) -> Plot:
    loads = record["loads"]
    said = []
    with axes(1.2 + 0.5 * len(loads)) as (view, svg):
        for index, half in enumerate(("first", "second")):
            values = [load[half]["speedup"] for load in loads]
            places = [place + 0.2 * (index - 0.5) for place in range(len(loads))]
            error_bars(view, places, values, index, "AB"[index], across=True)
            texts = [number(value["value"]) for value in values]
            said.append(f"{'AB'[index]} {', '.join(texts)}")
        _name_loads(view, loads)
        view.set_xlabel("speedup over plain decoding, ×")
        legend(view)
        return Plot(
            "Speedup of both",
            f"Speedup at {'; '.join(map(load_name, loads))}: {'. '.join(said)}.",
            svg(),
            "Each over the common prompts, with 95% intervals of its own.",
        )


def _ratio(record: Record) -> Plot:
    loads = record["loads"]
    values = [load["speedup_ratio"] for load in loads]
    with axes(1.2 + 0.5 * len(loads)) as (view, svg):
        error_bars(view, range(len(loads)), values, 2, "B / A", across=True)
        _name_loads(view, loads)
        view.set_xlabel("speedup of B / speedup of A")
        said = [f"{load_name(one)} {interval(one['speedup_ratio'])}" for one in loads]
        return Plot(
            "B over A",
            f"Ratio of the speedups: {'; '.join(said)}.",
            svg(),
            "Paired over the same prompts, hence narrower. Right of 1 B is faster.",
        )


def _name_loads(view: Axes, loads: list[Record]) -> None:
    """Loads from top to bottom, and where nothing is gained."""
    view.axvline(1.0, color=FAINT, linewidth=1.6, zorder=0.5)
    view.set_yticks(range(len(loads)), [load_name(load) for load in loads])
    view.set_ylim(len(loads) - 0.4, -0.6)
