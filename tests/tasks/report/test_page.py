"""One page that needs nothing else, in which text is text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tasks.report.page import STYLE, Figure, Section, html_page
from tasks.report.table import Link, Table
from tests.tasks.report.test_figures import contrast

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' </td>"
SVG = '<svg role="img" aria-label="it"><text>shown</text></svg>'


class Reader(HTMLParser):
    """Tags with attributes, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def whole(said: str = "text") -> str:
    table = Table(said, ["name", "value", said], [[said, "1.5", "a" * 64], ["b", "-2", "x" * 61]])
    section = Section(
        said, texts=[said], points=[said], figures=[Figure(SVG, said)], tables=[table], details=((said, said),)
    )
    return html_page(said, said, [said], [section, Section("Other")])


def test_everything_that_is_given_as_text_is_shown_as_text():
    reader, plain = Reader(whole(NASTY)), Reader(whole())
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert not {"script", "iframe", "link"} & ({tag for tag, _ in reader.tags} - {"link"})
    assert reader.text.count(NASTY) == plain.text.count("text") - STYLE.count("text") >= 10


def test_a_figure_stands_in_the_page_as_it_is():
    assert SVG in whole()


def test_the_page_asks_for_nothing_and_may_not():
    reader = Reader(whole(NASTY))
    for tag, attributes in reader.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)
    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not re.search(r"url\(|@import", STYLE)


def test_sections_are_linked_from_the_top():
    reader = Reader(html_page("t", "l", [], [Section("What was: verified?"), Section("Limits")]))
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert links == ["#what-was-verified", "#limits"]
    assert {f"#{attributes.get('id')}" for tag, attributes in reader.tags if tag == "section"} == set(links)


def test_a_link_in_a_cell_leads_where_it_says_and_is_its_text_elsewhere():
    table = Table("c", ["place"], [[Link(NASTY, 'runs/"a"&b')]])
    html = html_page("t", "l", [], [Section("One", tables=[table])])
    (target,) = [a["href"] for tag, a in Reader(html).tags if tag == "a" and a["href"] != "#one"]
    assert target == 'runs/"a"&b' and NASTY in Reader(html).text
    assert table.markdown().splitlines()[-1] == f"| {NASTY} |"


def test_numbers_stand_right_and_digests_are_set_as_code():
    cells = [a for tag, a in Reader(whole()).tags if tag == "td"]
    assert [cell.get("class") for cell in cells] == [None, "right", "code", None, "right", "long"]


def test_every_table_can_be_scrolled_by_itself_also_with_the_keyboard():
    html = whole()
    assert re.search(r'<div class="scroll" tabindex="0" role="region" aria-label="[^"]+"><table', html)
    assert re.search(r"\.scroll \{[^}]*overflow-x: auto", STYLE)


def test_a_table_that_goes_on_beside_the_screen_shows_a_shadow_there():
    """The covers scroll with the table and hide the shadows at its ends: seen on a screen of 420 pixels."""
    (style,) = re.findall(r"\.scroll \{([^}]*)\}", STYLE.split("@media print")[0])
    for side in ("left", "right"):
        assert re.search(rf"var\(--paper\)\) {side} / \S+ 100% no-repeat local", style)
        assert re.search(rf"transparent\) {side} / \S+ 100% no-repeat scroll", style)


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_is_readable_in_light_and_in_dark(scheme: str):
    light, dark = STYLE.split("prefers-color-scheme: dark", 1)
    used = colours(light if scheme == "light" else dark.split("* {")[0])
    assert set(used) == {"ink", "faint", "grid", "paper", "side", "link", "series-1", "series-2", "series-3"}
    for name in ("ink", "faint", "link", "series-1", "series-2", "series-3"):
        for paper in ("paper", "side"):
            assert contrast(used[name], used[paper]) >= 4.5, (name, paper)


def test_there_is_a_style_for_narrow_screens_and_for_print():
    assert '<meta name="viewport" content="width=device-width' in whole()
    assert "@media print" in STYLE
