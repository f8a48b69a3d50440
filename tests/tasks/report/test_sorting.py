"""A page's tables in a real browser: a click sorts, a second one backwards, a third one gives the first order again."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess

import pytest

from tasks.report.page import Section, html_page
from tasks.report.sorting import SCRIPT
from tasks.report.table import Table

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ROWS = [
    ["base", "4,188.43", "+0.3518 to +0.4025", "7.70%", "65/65", "seed 10"],
    ["**a (dead)**", "99.5", "-0.0495 to -0.0143", "-", "7/65", "seed 9"],
    ["b", "-", "none (one source)", "10.00%", "64/65", "seed 1"],
    ["c", "> 1e300", "-", "-1.50%", "8/65", "seed 2"],
]
HEADER = ["model", "value", "interval", "share", "steps", "cell"]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Column -> the order of the first column, and aria-sort of all heads, at first and after each of three clicks."""
    if BROWSER is None:
        pytest.skip("no Chromium is installed here (apt-get install chromium)")
    html = html_page(
        "t", "l", [], [Section("One", tables=[Table("c", HEADER, ROWS), Table("one row", ["x"], [["1"]])])]
    )
    look = """
      const table = document.querySelector("table"), seen = {};
      const now = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent)
        .concat([...table.tHead.rows[0].cells].map((head) => head.getAttribute("aria-sort")).join());
      for (const button of table.querySelectorAll("th button")) {
        const orders = seen[button.textContent] = [now()];
        for (let click = 0; click < 3; click++) { button.click(); orders.push(now()); }
      }
      seen.buttons = [[String(document.querySelectorAll("button").length)]];
      document.title = JSON.stringify(seen);"""
    allowed = f"'sha256-{base64.b64encode(hashlib.sha256(look.encode()).digest()).decode()}'"
    html = html.replace("script-src ", f"script-src {allowed} ").replace("</body>", f"<script>{look}</script></body>")
    folder = tmp_path_factory.mktemp("browser")
    (folder / "page.html").write_text(html)
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    return json.loads(title)


@pytest.mark.parametrize(
    ("column", "ascending", "descending"),
    [
        ("model", ["a (dead)", "b", "base", "c"], ["c", "base", "b", "a (dead)"]),
        ("value", ["a (dead)", "base", "c", "b"], ["c", "base", "a (dead)", "b"]),
        ("interval", ["a (dead)", "base", "b", "c"], ["base", "a (dead)", "b", "c"]),
        ("share", ["c", "base", "b", "a (dead)"], ["b", "base", "c", "a (dead)"]),
        ("steps", ["a (dead)", "c", "b", "base"], ["base", "b", "c", "a (dead)"]),
        ("cell", ["b", "c", "a (dead)", "base"], ["base", "a (dead)", "c", "b"]),
    ],
)
def test_a_click_sorts_and_what_has_no_value_stands_last(
    seen: dict[str, list[list[str]]], column: str, ascending: list[str], descending: list[str]
):
    first = [row[0].replace("**", "") for row in ROWS]
    states = ["", "ascending", "descending", ""]
    marks = [",".join(state if name == column else "" for name in HEADER) for state in states]
    orders = [first, ascending, descending, first]
    assert seen[column] == [[*order, mark] for order, mark in zip(orders, marks, strict=True)]


def test_a_table_of_one_row_has_nothing_to_click(seen: dict[str, list[list[str]]]):
    assert seen["buttons"] == [[str(len(HEADER))]]


def test_without_scripts_a_page_shows_no_button():
    page = html_page("t", "l", [], [Section("One", tables=[Table("c", HEADER, ROWS)])])
    assert "<button" not in page.replace(SCRIPT, "")
