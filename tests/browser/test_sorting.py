"""A page's tables in a real browser: a click sorts, a second one backwards, a third one gives the first order again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.findings.document import Document, Section
from tasks.findings.page import html_page
from tasks.findings.table import Table
from tests.browser.conftest import OpenPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROWS = [
    ["base", "4,188.43", "+0.3518 to +0.4025", "7.70%", "65/65", "seed 10"],
    ["**a (dead)**", "99.5", "-0.0495 to -0.0143", "-", "7/65", "seed 9"],
    ["b", "-", "none (one source)", "10.00%", "64/65", "seed 1"],
    ["c", "> 1e300", "-", "-1.50%", "8/65", "seed 2"],
]
HEADER = ["model", "value", "interval", "share", "steps", "cell"]


@pytest.fixture
def page(open_page: OpenPage, tmp_path: Path) -> Page:
    tables = [Table("c", HEADER, ROWS), Table("one row", ["x"], [["1"]])]
    (tmp_path / "page.html").write_text(html_page(Document("t", sections=[Section("One", tables=tables)])))
    return open_page((tmp_path / "page.html").as_uri())


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
    page: Page, column: str, ascending: list[str], descending: list[str]
):
    table = page.locator("table").first
    first = [row[0].replace("**", "") for row in ROWS]
    shown = [(first, "")]
    for _ in range(3):
        table.locator("thead button").nth(HEADER.index(column)).click()
        state = table.locator("thead th").nth(HEADER.index(column)).get_attribute("aria-sort") or ""
        shown.append((table.locator("tbody tr td:first-child").all_inner_texts(), state))
        assert table.locator("[aria-sort]").count() <= 1
    assert shown == [(first, ""), (ascending, "ascending"), (descending, "descending"), (first, "")]


def test_a_table_of_one_row_has_nothing_to_click(page: Page):
    assert page.get_by_role("button").count() == len(HEADER)
