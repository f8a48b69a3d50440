"""Our own pages as a person sees them: on a telephone and on a wide screen, light and dark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from tests.browser.conftest import NARROW, WIDE, OpenPage
from tests.conftest import REPOSITORY
from tests.tasks.findings.test_figures import contrast
from tests.tasks.icecube import tiny as icecube
from tests.tasks.inversion import tiny as inversion

PAGES = [
    "index.html",
    "smoke/aggregate/report.html",
    "smoke/sweep/report.html",
    "icecube-smoke/icecube-report/report.html",
    "inversion-smoke/inversion-report/report.html",
]
REPORTS = [page for page in PAGES if page.endswith("/report.html")]
OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
READABLE = 4.5
"""Contrast of text and what is behind it, which WCAG 2.2 (1.4.3) asks for."""
TEXTS = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.checkVisibility() && !node.closest("svg"))
  .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
  .map((node) => {
  let behind = node;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  return [getComputedStyle(node).color, getComputedStyle(behind).backgroundColor, node.textContent.trim().slice(0, 40)];
})"""


@pytest.fixture(scope="module")
def pages(smoke_root: Path, prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name -> file of every page below a root that holds the studies, and a sweep over two seeds."""
    root = tmp_path_factory.mktemp("pages") / "runs"
    for finished in (smoke_root, icecube.finished().root, inversion.finished().root):
        shutil.copytree(finished, root, symlinks=True, dirs_exist_ok=True)
    for command in (
        ["sweep", "robustness", "--profile", "smoke", "--over", "seed=42,43", "--root"],
        ["index"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", "from flows.command import ratchet; raise SystemExit(ratchet())", *command, root],
            cwd=REPOSITORY,
            env=os.environ | {"PREFECT_API_URL": prefect_server},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    real = sorted(page for page in root.rglob("*.html") if not page.relative_to(root).is_symlink())
    return {re.sub(r"/[0-9a-f]{12}/", "/", str(page.relative_to(root))): page for page in real}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_a_page_is_as_wide_as_the_window_and_its_text_is_readable(
    open_page: OpenPage, page: Path, width: int, dark: bool
):
    shown = open_page(page.as_uri(), width, dark)
    shown.evaluate(OPEN_ALL)
    assert shown.evaluate("document.scrollingElement.scrollWidth") <= width
    texts = shown.evaluate(TEXTS)
    assert len(texts) > 10
    assert [text for text in texts if contrast(_hex(text[0]), _hex(text[1])) < READABLE] == []
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (contrast(_hex(paper), "#ffffff") > READABLE) is dark


def test_the_text_column_grows_with_the_window(open_page: OpenPage, pages: dict[str, Path]):
    report = pages["smoke/aggregate/report.html"].as_uri()
    widths = [open_page(report, width).evaluate("document.querySelector('main').clientWidth") for width in (800, WIDE)]
    assert widths[1] > 1.5 * widths[0]


def test_every_link_leads_to_what_is_there(open_page: OpenPage, page: Path):
    shown = open_page(page.as_uri())
    links = [urljoin(shown.url, link.get_attribute("href") or "") for link in shown.locator("a[href]").all()]
    assert links
    for link in links:
        target = urlsplit(link)
        place = Path(unquote(target.path))
        assert target.scheme == "data" or (target.scheme == "file" and place.exists()), link
        if target.fragment and place == page:
            assert shown.locator(f"[id='{unquote(target.fragment)}']").count() == 1, link


def test_a_figure_has_a_size_and_says_what_it_shows(open_page: OpenPage, pages: dict[str, Path]):
    shown = open_page(pages["smoke/aggregate/report.html"].as_uri(), NARROW)
    shown.evaluate(OPEN_ALL)
    figures = shown.locator("svg[role=img]").all()
    assert len(figures) == 1, "the answer"
    for figure in figures:
        box = figure.bounding_box()
        assert figure.get_attribute("aria-label") and (box is None or (box["width"] > 100 and box["height"] > 50))


@pytest.mark.parametrize("report", REPORTS)
def test_the_first_screen_is_the_answer_and_every_section_is_folded(
    open_page: OpenPage, pages: dict[str, Path], report: str
):
    shown = open_page(pages[report].as_uri())
    tops = [shown.locator(one).bounding_box() for one in (".verdict", ".lead", "figure.answer", ".facts")]
    boxes = [box for box in tops if box]
    assert boxes and all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(boxes))
    figure = shown.locator("figure.answer svg")
    assert figure.count() == 0 or figure.bounding_box()["y"] + figure.bounding_box()["height"] <= 900
    assert shown.locator("details.section").count() > 2 and shown.locator("details[open]").count() == 0


def test_a_link_into_a_folded_section_opens_it(open_page: OpenPage, pages: dict[str, Path]):
    report = pages["smoke/aggregate/report.html"].as_uri()
    shown = open_page(report)
    shown.locator("nav a", has_text="What the constraint costs").click()
    assert shown.locator("#what-the-constraint-costs").is_visible()
    row = shown.locator("#what-the-constraint-costs td a[href^='#run-']").first
    target = row.get_attribute("href")
    row.click()
    assert shown.locator(target).is_visible() and shown.locator("#provenance").is_visible()
    assert open_page(f"{report}{target}").locator(target).is_visible(), "as somebody sent it"


def test_paper_shows_all_that_is_folded(open_page: OpenPage, pages: dict[str, Path]):
    shown = open_page(pages["smoke/aggregate/report.html"].as_uri())
    texts = "[...document.querySelectorAll('details p, details li, details td')]"
    hidden = f"{texts}.filter((one) => !one.checkVisibility()).length"
    assert shown.evaluate(hidden) > 100
    shown.emulate_media(media="print")
    assert shown.evaluate(hidden) == 0


def test_what_is_folded_opens(open_page: OpenPage, pages: dict[str, Path]):
    shown = open_page(pages["smoke/aggregate/report.html"].as_uri())
    folded = shown.locator("details:not([open])")
    assert (before := folded.count()) > 0
    inside = folded.first.locator("> *:not(summary)").first
    assert not inside.is_visible()
    folded.first.locator("summary").first.click()
    assert folded.count() == before - 1


def _hex(colour: str) -> str:
    """#rrggbb of `rgb(1, 2, 3)`, which is what a browser says of a colour."""
    red, green, blue = map(int, re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour).groups())
    return f"#{red:02x}{green:02x}{blue:02x}"
