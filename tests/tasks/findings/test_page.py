"""One page that needs nothing else, in which text is text."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from tasks.findings.document import Document, Excerpt, Figure, Folded, Section
from tasks.findings.page import html_page
from tasks.findings.style import SCRIPT, STYLE
from tasks.findings.table import Link, Table
from tests.tasks.findings.test_figures import contrast

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


def page(*sections: Section) -> str:
    return html_page(Document("t", sections=sections))


def whole(said: str = "text") -> str:
    table = Table(said, ["name", "value", said], [[said, "1.5", "a" * 64], ["b", "-2", "x" * 61]])
    section = Section(
        said,
        texts=[said],
        points=[said],
        figures=[Figure("one", SVG, said), Figure("two", SVG, said)],
        excerpts=[Excerpt(said, {said: [(said, False), (said, True)]})],
        tables=[table],
        details=[Folded(said, said, "file", [Excerpt(said, {said: [(said, True)]})])],
    )
    first = Document(said, said, said, [said], Figure("answer", SVG, said), [said], said, [said])
    return html_page(replace(first, sections=[section, Section("Other")]), [Link(said, "#")], folded=True)


def test_everything_that_is_given_as_text_is_shown_as_text():
    reader, plain = Reader(whole(NASTY)), Reader(whole())
    assert [tag for tag, _ in reader.tags] == [tag for tag, _ in plain.tags]
    assert [tag for tag, _ in reader.tags].count("script") == 1 and "iframe" not in dict(reader.tags)
    ours = STYLE.count("text") + SCRIPT.count("text")
    assert reader.text.count(NASTY) == plain.text.count("text") - ours >= 20


def test_a_figure_stands_in_the_page_as_it_is():
    assert SVG in whole()


def test_the_page_asks_for_nothing_and_may_not():
    reader = Reader(whole(NASTY))
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:")), (tag, target)
    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    (script,) = re.findall(r"<script>(.*?)</script>", whole(NASTY), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    assert not re.search(r"url\(|@import", STYLE)


def test_the_first_screen_is_verdict_sentence_figure_and_what_was_not_shown_and_every_section_is_folded():
    said = Document(
        "a title", "the verdict", "the lead", ["a number"], Figure("answer", SVG, "a caption"), ["not this"], "asked",
        ["a fact"], [Section("One", texts=["the text"]), Section("Two")],
    )  # fmt: skip
    html = html_page(said, folded=True)
    body = Reader(html[html.index("<body>") :]).text
    order = ["a title", "the verdict", "the lead", "shown", "a caption", "not this", "asked", "a fact", "the text"]
    places = [body.index(part) for part in order]
    assert places == sorted(places) and "a number" not in body, "the figure shows it"
    assert len(re.findall(r'<details class="section"><summary><h2>', html)) == 2 and " open" not in html
    assert "<details" not in html_page(said)


def test_sections_are_linked_from_the_top():
    reader = Reader(page(Section("What was: verified?"), Section("Limits")))
    links = [attributes["href"] for tag, attributes in reader.tags if tag == "a"]
    assert links == ["#what-was-verified", "#limits"]
    assert {f"#{attributes.get('id')}" for tag, attributes in reader.tags if tag == "section"} == set(links)


def test_a_cell_leads_below_the_page_whatever_its_name_and_its_target_say():
    odd = Path("javascript:a") / f"b #c?d%20&\"'{NASTY.replace('/', '')}"
    table = Table("t", ["report"], [[Link(NASTY, quote(odd.as_posix()))], [Link("0" * 12, "x")]])
    reader = Reader(page(Section("s", tables=[table])))
    first, second = [
        a["href"] or "" for tag, a in reader.tags if tag == "a" and not (a["href"] or "").startswith(("#", "data:"))
    ]
    assert re.fullmatch(r"[\w./%-]+", first) and unquote(first) == odd.as_posix() and second == "x"
    assert NASTY in reader.text


def test_a_link_in_a_cell_leads_where_it_says_and_is_its_text_elsewhere():
    table = Table("c", ["place"], [[Link(NASTY, 'runs/"a"&b')]])
    html = page(Section("One", tables=[table]))
    (target,) = [a["href"] for tag, a in Reader(html).tags if tag == "a" and (a["href"] or "").startswith("runs/")]
    assert target == 'runs/"a"&b' and NASTY in Reader(html).text
    assert table.markdown().splitlines()[-1] == f"| {NASTY} |"


def test_what_is_folded_can_be_kept_as_a_file():
    reader = Reader(page(Section("One", details=[Folded("s", "a: 7%20\n# é\n", "it.yaml")])))
    (link,) = [a for tag, a in reader.tags if tag == "a" and "download" in a]
    assert link["download"] == "it.yaml" and unquote((link["href"] or "").partition(",")[2]) == "a: 7%20\n# é\n"


def test_a_run_leads_to_its_row_wherever_it_is_named():
    rows = Table("where", ["run"], [["abc"]], ids=["run-abc"])
    html = page(Section("One", tables=[Table("c", ["x", "run"], [["abd", "abc"]]), rows]))
    assert '<td>abd</td><td><a href="#run-abc">abc</a></td>' in html and '<tr id="run-abc"><td>abc</td>' in html


def test_a_part_of_a_text_may_be_bold_or_a_command():
    table = Table("c", ["model", "on **a (dead)**"], [["b", "1"]])
    html = page(Section("One", tables=[table], points=["type `list <a>`"]))
    assert '<th scope="col" class="right">on <strong>a (dead)</strong></th>' in html
    assert "<li>type <code>list &lt;a&gt;</code></li>" in html


def test_marked_parts_of_a_text_are_marked():
    excerpt = Excerpt("c", {"after": [("a <b> ", False), ("c & d", True)]})
    html = page(Section("One", excerpts=[excerpt]))
    assert "<dt>after</dt><dd>a &lt;b&gt; <mark>c &amp; d</mark></dd>" in html


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
def test_every_colour_is_readable_in_light_and_in_dark(scheme):
    light, dark = STYLE.split("prefers-color-scheme: dark", 1)
    used = colours(light if scheme == "light" else dark.split("* {")[0])
    assert set(used) == {"ink", "faint", "grid", "paper", "side", "link", "mark", "series-1", "series-2", "series-3"}
    assert contrast(used["ink"], used["mark"]) >= 4.5
    for name in ("ink", "faint", "link", "series-1", "series-2", "series-3"):
        for paper in ("paper", "side"):
            assert contrast(used[name], used[paper]) >= 4.5, (name, paper)


def test_there_is_a_style_for_narrow_screens_and_for_print():
    assert '<meta name="viewport" content="width=device-width' in whole()
    assert "@media print" in STYLE


def test_without_scripts_a_page_shows_no_button():
    html = page(Section("One", tables=[Table("c", ["x"], [["2"], ["1"]])]))
    assert "<table" in html and "<button" not in html.replace(SCRIPT, "")
