"""LABELS: a name from data is shown as it was typed, in tables, figures and on the page."""

import re
from dataclasses import replace
from html import unescape

import pytest

from distill.evaluate.conclusion import Bar, conclude
from distill.evaluate.load import Load
from distill.evaluate.report.page import render_report
from distill.evaluate.report.tables import load_text
from distill.speculative.sampling import Sampling

NAMES = [
    "[/INST]", "[code]", "[bold red]x[/]", "draft[v1]", r"$\\foo$", "$x$", "<b>", "</text><script>",
    ":smile:", "a&b", "{{ 7 }}", "{% x %}", "#000003", "_x", "C++ @k=1, naïve (日本)", "%s %d {0}",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_markup(facts, name):
    made = facts(name=name)
    domains = [{**part, "name": name} for part in made.evaluation["domains"]]
    made = replace(made, evaluation={**made.evaluation, "domains": domains})
    html = render_report(made)
    assert "<script" not in html
    assert "<b>" not in html
    cells = [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html, re.DOTALL)]
    assert any(name in cell for cell in cells)
    texts = [unescape(text) for text in re.findall(r"<text[^>]*>(.*?)</text>", html, re.DOTALL)]
    assert any(text.strip().startswith(name) for text in texts)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_markup_in_a_terminal_table(simulated, name):
    rows = simulated(8, 1, 0.6, 0.1, candidate=name)
    rows = [replace(row, domain=name if row.prompt_id < "p004" else "other") for row in rows]
    text = load_text(Load(Sampling(), 8, (), 1, 40, 0), conclude(rows, Bar(1.0, {})))
    folded = text.replace("\n", "")
    assert text.count(name) >= 1  # the domain's line, never folded
    assert f"{name} ★" in text or name[:10] in folded
