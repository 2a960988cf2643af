"""The page of two evaluations side by side."""

from typing import Any

from matplotlib.axes import Axes

from distill.evaluate.compare import Comparison
from distill.evaluate.report.drawing import FAINT, Plot, axes, error_bars, legend
from distill.evaluate.report.formats import interval, number
from distill.evaluate.report.loads import load_name
from distill.evaluate.report.page import render

Record = dict[str, Any]


def render_comparison(comparison: Comparison) -> str:
    """One self-contained page."""
    record = comparison.as_json()
    for load, contrast in zip(record["loads"], comparison.loads, strict=True):
        load["conclusion"] = contrast.conclusion
    figures = [_speedups(record), _ratio(record)]
    return render("comparison.html.jinja", comparison=record, figures=figures)


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
