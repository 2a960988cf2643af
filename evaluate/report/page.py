"""One self-contained HTML page from plain data: no network, no script."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from distill.evaluate.report import acceptance_plots, speed_plots, training_plots
from distill.evaluate.report.drawing import Plot, own_ids
from distill.evaluate.report.facts import Facts
from distill.evaluate.report.formats import NOTHING, interval, number, short_name
from distill.evaluate.report.loads import by_sampling, load_name

HERE = Path(__file__).parent


def render_report(facts: Facts) -> str:
    """The report of one evaluation."""
    evaluation = facts.evaluation
    loads = evaluation["loads"]
    figures = {
        "speed": [
            *(speed_plots.speedup_by_k(evaluation, group) for group in by_sampling(loads).values()),
            speed_plots.speedup_by_batch(evaluation),
        ],
        "acceptance": [
            acceptance_plots.alpha_by_domain(evaluation),
            acceptance_plots.alpha_by_position(evaluation),
            acceptance_plots.tokens_by_k(evaluation),
        ],
        "training": [
            training_plots.curves(facts.training),
            training_plots.alpha_by_tokens(evaluation, facts.training),
        ],
        "times": [speed_plots.times(facts.rows, loads[0])],
    }
    shown = {name: [plot for plot in group if plot] for name, group in figures.items()}
    return render("report.html.jinja", facts=facts, evaluation=evaluation, figures=shown)


def render(template: str, **values: Any) -> str:
    """A template of this folder, everything escaped but the drawings."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    counter = iter(range(10_000))
    environment.filters |= {
        "number": number,
        "times": lambda value: f"{number(value)}×",
        "interval": interval,
        "count": lambda value: NOTHING if value is None else f"{value:,.0f}",
        "share": lambda value: NOTHING if value is None else f"{value:.0%}",
        "short_name": short_name,
        "drawing": lambda plot: _drawing(plot, next(counter)),
    }
    environment.globals["load_name"] = load_name
    style = Markup((HERE / "style.css").read_text(encoding="utf-8"))
    return environment.get_template(template).render(style=style, **values)


def _drawing(plot: Plot, index: int) -> Markup:
    """Ours, and made by matplotlib, which escapes the texts in it."""
    svg = own_ids(plot.svg, f"drawing{index}")
    label = Markup('<svg role="img" aria-label="{}" ').format(plot.alt)
    return label + Markup(svg.removeprefix("<svg "))
