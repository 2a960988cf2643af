"""The report as a page: whole in one file, readable without the rest, true to its numbers."""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from distill.evaluate.report.formats import interval, number, short_name
from distill.evaluate.report.page import render_report


class Page(HTMLParser):
    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def values(self, *names: str) -> list[str]:
        return [v for _, attrs in self.tags for k, v in attrs.items() if k in names and v]


def test_nothing_is_fetched_and_nothing_runs(facts) -> None:
    html = render_report(facts(batch_sizes=(1, 4)))
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "img"}
    places = page.values("href", "src", "xlink:href")
    assert all(place.startswith(("#", "data:")) for place in places)
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_drawings_share_no_ids_and_speak(facts) -> None:
    page = Page(render_report(facts(batch_sizes=(1, 4))))
    ids = page.values("id")
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(drawings) == 8
    assert all(one["role"] == "img" and len(one["aria-label"] or "") > 20 for one in drawings)
    references = [place[1:] for place in page.values("xlink:href") if place.startswith("#")]
    assert set(references) <= set(ids)


def test_colours_are_the_pages_own(facts) -> None:
    html = render_report(facts())
    assert not re.search(r"#00000[0-9a-f]", html)
    assert "var(--series-0)" in html
    assert "currentColor" in html


@pytest.mark.parametrize(
    ("margin", "prompts", "words"),
    [
        (1.0, 20, ["Ship", "k = 2", "as fast"]),
        (9.0, 20, ["Do not ship", "not worth it"]),
        (1.0, 3, ["Not enough evidence", "cannot be said yet"]),
    ],
)
def test_the_verdict_comes_first_and_in_words(facts, margin, prompts, words) -> None:
    found = facts(margin=margin, prompts=prompts)
    top = render_report(found).split("<body>")[1].split("<h2>")[0]
    text, lead = (re.sub(r"<[^>]+>", "", part) for part in (top, top.split('"lead">')[1]))
    for word in words:
        assert word in text
    value, low, high = (
        f"{found.evaluation[name]:.2f}" for name in ("speedup", "speedup_low", "speedup_high")
    )
    assert f"{value}× as fast as " in lead.split("95%")[0]
    assert lead.split("(95% interval ")[1].startswith(f"{low} to {high})")


def test_a_figure_by_batch_size_only_where_there_are_several(facts) -> None:
    assert "Speedup by batch size" not in render_report(facts())
    html = render_report(facts(batch_sizes=(1, 4)))
    assert "Speedup by batch size" in html
    assert "Of 2 loads measured, 2 ship" in html


def test_texts_are_escaped(facts) -> None:
    html = render_report(facts(name="<b>draft</b>"))
    assert "<b>draft" not in html
    assert "&lt;b&gt;draft&lt;/b&gt;" in html
    assert "name=&#39;&lt;x&gt;&#39;" in html


def test_the_certificate_of_the_pair_is_shown(facts) -> None:
    assert "No certificate" in render_report(facts())
    html = render_report(replace(facts(), certificate="certified: law enumerated"))
    assert "certified: law enumerated" in html
    assert "No certificate" not in html


def test_what_was_not_measured_is_a_dash(facts) -> None:
    found = facts()
    nothing = {"value": None, "low": None, "high": None}
    table = [
        arm | {"alpha": nothing, "alpha_at": [None] * arm["num_draft_tokens"], "speedup": nothing}
        | {"predicted_speedup": None}
        for arm in found.evaluation["table"]
    ]  # fmt: skip
    untrained = [one | {"tokens": None, "kl": None} for one in found.evaluation["candidates"]]
    evaluation = found.evaluation | {"table": table, "candidates": untrained}
    html = render_report(replace(found, evaluation=evaluation, training=type(found.training)()))
    assert "– [–, –]" in html
    assert "was not trained here" in html


def test_formats() -> None:
    assert (number(None), number(float("nan")), number(1.005, 1)) == ("–", "–", "1.0")
    assert interval({"value": 1.157, "low": 1.05, "high": 1.26}) == "1.16 [1.05, 1.26]"
    assert (short_name("/data/models/large"), short_name("org/large")) == ("large", "org/large")


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no headless Chromium or Chrome on this machine")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1600])
def test_a_browser_draws_it_whole(facts, tmp_path: Path, width: int, dark: bool) -> None:
    """In a frame of that width, since a window has a smallest one."""
    html = render_report(facts(batch_sizes=(1, 4), name="a-draft-of-a-long-name-" * 4))
    framed = write(tmp_path / "frame.html", FRAME.format(width=width, page=escape(html)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    said = browse(framed, width, tmp_path, scheme, "--dump-dom")
    errors = re.findall(r"CONSOLE.*", said.stderr)
    assert len(errors) == 1, errors
    assert "seen" in errors[0]  # console errors do arrive here
    seen = json.loads(unescape(re.search(r"<title>(.*?)</title>", said.stdout).group(1)))
    assert seen["fetched"] == []
    assert seen["wide"] <= width
    assert seen["dark"] is dark
    assert len(seen["drawings"]) == html.count("<figure>")
    for one in seen["drawings"]:
        assert len(one["says"]) > 20
        assert one["width"] > 0.95 * min(one["room"], 34 * 16), one
        assert one["height"] > 100, one
        assert one["texts"] > 3, one
    assert [text for text in seen["texts"] if text["contrast"] < READABLE] == []
    assert min(text["pixels"] for text in seen["texts"]) >= 9


READABLE = 4.5
"""Contrast of text and paper (WCAG 2.2, success criterion 1.4.3, level AA)."""
FRAME = """<!doctype html><title></title>
<iframe width="{width}" height="3000" style="border:0;color-scheme:light dark" srcdoc="{page}">
</iframe>
<script>
const channels = colour => (colour.match(/[0-9.]+/g) || []).map(Number);
const light = rgb => rgb.slice(0, 3).map(c => c / 255)
  .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
onload = () => {{
  console.error("seen");
  const view = document.querySelector("iframe").contentWindow, page = view.document;
  page.querySelectorAll("details").forEach(one => one.open = true);
  const style = one => view.getComputedStyle(one);
  const paper = one => {{
    for (; one; one = one.parentElement) {{
      const found = channels(style(one).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }}
  }};
  const drawings = [...page.querySelectorAll("figure > svg")].map(one => ({{
    says: one.getAttribute("aria-label") || "",
    width: one.getBoundingClientRect().width,
    height: one.getBoundingClientRect().height,
    room: one.parentElement.parentElement.firstElementChild.getBoundingClientRect().width,
    texts: one.querySelectorAll("text").length,
  }}));
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT), texts = [];
  while (walker.nextNode()) {{
    const one = walker.currentNode.parentElement, says = walker.currentNode.data.trim();
    if (!says || one.localName === "style" || !one.getClientRects().length) continue;
    const scale = one.ownerSVGElement ? Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b) : 1;
    const ink = channels(one.ownerSVGElement ? style(one).fill : style(one).color);
    texts.push({{
      says, contrast: contrast(light(ink), light(paper(one))),
      pixels: parseFloat(style(one).fontSize) * scale,
    }});
  }}
  document.title = JSON.stringify({{
    fetched: view.performance.getEntriesByType("resource").map(one => one.name),
    wide: page.documentElement.scrollWidth,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    drawings, texts,
  }});
}};
</script>"""


def write(path: Path, html: str) -> Path:
    path.write_text(html, encoding="utf-8")
    return path


def browse(page: Path, width: int, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},3000", *flags, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
