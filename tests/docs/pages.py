"""What the README and the pages of docs/ hold: blocks, code in a line, links, headings."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PAGES = {
    file.relative_to(REPOSITORY).as_posix(): file.read_text()
    for file in [*REPOSITORY.glob("*.md"), *sorted((REPOSITORY / "docs").glob("*.md"))]
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)((?: {4}.*\n|\n(?= {4}))+)")
DRAWINGS = (
    "icecube-pulses -> ",
    "inversion-matrices -> ",
    "summarisation-pairs -> ",
    "poison-pool -> ",
    "calorimeter-showers -> ",
    "runs/<study>/",
    "flows/  ",
)
"""How indented blocks begin that are drawings, and nothing to paste."""


@dataclass(frozen=True)
class Block:
    """A block of a page; the language of an indented one that is no drawing is bash."""

    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.splitlines()[0][:60]}"


def blocks(*languages: str) -> list[Block]:
    """Every block of all pages in these languages."""
    return [block for name, text in PAGES.items() for block in blocks_of(name, text) if block.language in languages]


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The blocks of one page."""
    for language, block in FENCED.findall(text):
        yield Block(page, language, block)
    for block in INDENTED.findall(FENCED.sub("\n", text)):
        plain = re.sub(r"^ {4}", "", block, flags=re.MULTILINE)
        yield Block(page, "" if plain.startswith(DRAWINGS) else "bash", plain)


def spans(text: str) -> list[str]:
    """Code that stands in a line."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCED.sub("\n", text))


def links(text: str) -> list[str]:
    """Where links lead; a web address is none of ours."""
    found = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", FENCED.sub("\n", text).replace("\n", " "))
    return [link for link in found if "://" not in link]


def anchors(page: Path) -> set[str]:
    """What a link may name in a page: its headings, as forges write them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("\n", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
