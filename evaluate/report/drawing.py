"""How every figure looks, and how it becomes part of a page.

Figures are drawn in placeholder colours that turn into the page's CSS variables, so that one
figure serves light, dark and print. Series differ in marker and dash as well as in colour.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distill.evaluate.report.formats import number_of

INK, FAINT = "#000001", "#000002"
SERIES = ("#000003", "#000004", "#000005", "#000006", "#000007", "#000008")
MARKERS = ("o", "s", "^", "D", "v", "P")
_VARIABLES = {INK: "currentColor", FAINT: "var(--faint)"} | {
    colour: f"var(--series-{index})" for index, colour in enumerate(SERIES)
}
SIZE = (4.9, 3.1)
"""Inches: at 72 points each about as wide as a phone, where its text is then 10 pixels high."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from data: `$x$` is no formula
    "svg.hashsalt": "distill",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.06,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "none",
}


@dataclass(frozen=True)
class Plot:
    """A figure on a page. alt says in words what the drawing shows, numbers included."""

    title: str
    alt: str
    svg: str
    caption: str = ""


@contextmanager
def axes(height: float = SIZE[1]) -> Iterator[tuple[Axes, Callable[[], str]]]:
    """Axes in our style, and what turns them into SVG once they are drawn on."""
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Texts stay texts: the reader's browser has the fonts for them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(SIZE[0], height), layout="constrained")
        yield figure.subplots(), lambda: _svg(figure)


def series(index: int) -> dict[str, Any]:
    """Colour and marker of series number `index`; hollow from the seventh on."""
    colour = SERIES[index % len(SERIES)]
    face = colour if index < len(SERIES) else "none"
    return {"color": colour, "marker": MARKERS[index % len(MARKERS)], "markerfacecolor": face}


def legend(view: Axes) -> None:
    """Above the axes, where it hides nothing; none for what names itself."""
    handles, labels = view.get_legend_handles_labels()
    if labels:
        columns = 2 if max(map(len, labels)) > 12 else 3
        view.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=columns,
            borderpad=0,
            handletextpad=0.5,
            columnspacing=1.2,
        )


def error_bars(
    view: Axes,
    places: Any,
    values: Sequence[Mapping[str, Any]],
    index: int,
    label: str,
    *,
    line: bool = False,
    across: bool = False,
) -> None:
    """Values with their intervals as series `index`: along y, or `across` along x."""
    middle = [number_of(value["value"]) for value in values]
    style = series(index) | {"linestyle": "-" if line else "none", "capsize": 3, "label": label}
    if across:
        view.errorbar(middle, places, xerr=_bars(values), **style)
    else:
        view.errorbar(places, middle, yerr=_bars(values), **style)


def _bars(values: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Lengths of the error bars below and above; a percentile interval may miss its own value."""
    return [
        [max(0.0, number_of(v["value"]) - number_of(v["low"])) for v in values],
        [max(0.0, number_of(v["high"]) - number_of(v["value"])) for v in values],
    ]


def line_at_one(view: Axes) -> None:
    view.axhline(1.0, color=FAINT, linewidth=1.6, zorder=0.5)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r"\1", text)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    return _in_tags(text, r"#00000[1-8]", lambda match: _VARIABLES[match.group()])


def _in_tags(svg: str, pattern: str, new: Callable[[re.Match[str]], str] | str) -> str:
    """Replace in tags only: the texts between them are names from data, shown as they are."""
    return re.sub(r"<[^>]*>", lambda tag: re.sub(pattern, new, tag.group()), svg)


def own_ids(svg: str, prefix: str) -> str:
    """The drawing with its ids made unique, so that many share one page."""
    return _in_tags(svg, r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-")
