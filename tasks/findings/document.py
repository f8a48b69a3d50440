"""A report as one document: its pages, its Markdown, its e-mail and the last lines of a terminal are made from it.

Its first screen is the answer: a verdict in a line, one sentence of numbers, one figure, and what was not shown.
"""

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.findings.table import Table

NOT_SHOWN = "Not shown, and to keep in mind:"
COLUMNS = 78
"""The width of an e-mail."""


@dataclass(frozen=True)
class Figure:
    """An SVG element that `tasks.findings.figures` made, and what it shows; published as `figures/<name>.svg`."""

    name: str
    svg: str
    caption: str


Piece = tuple[str, bool]
"""A part of a text; true where it is marked."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of text by name, such as before and after: a text that a model read, with insertions marked."""

    caption: str
    lines: Mapping[str, Sequence[Piece]]


@dataclass(frozen=True)
class Folded:
    """A part that is shown when its summary is clicked: text, which may be kept as `file`, and excerpts."""

    summary: str
    text: str = ""
    file: str = ""
    excerpts: Sequence[Excerpt] = ()


@dataclass(frozen=True)
class Section:
    """A part of a report: texts, points, figures, excerpts, tables and what is folded, in this order.

    All of it is plain text, but what stands between ** is bold. Figures, excerpts and what is folded stand on the page
    alone: text for a terminal has none, and excerpts are not ours to hand on.
    """

    title: str
    texts: Sequence[str] = ()
    points: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    excerpts: Sequence[Excerpt] = ()
    tables: Sequence[Table] = ()
    details: Sequence[Folded] = ()

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def markdown(self) -> str:
        blocks = [f"## {self.title}", *self.texts, _points(self.points), *(table.markdown() for table in self.tables)]
        return "\n\n".join(filter(None, blocks))


@dataclass(frozen=True)
class Document:
    """The contents of a report.

    `verdict` answers the question in a line, `lead` says the numbers behind it in a sentence, and `numbers` up to three
    of them with intervals, each in a line, for places where there is no figure. `answer` is the figure that shows them,
    `not_shown` what these numbers do not say, the most important first. `question` says what was asked, and of what.
    """

    title: str
    verdict: str = ""
    lead: str = ""
    numbers: Sequence[str] = ()
    answer: Figure | None = None
    not_shown: Sequence[str] = ()
    question: str = ""
    facts: Sequence[str] = ()
    sections: Sequence[Section] = ()

    @property
    def figures(self) -> list[Figure]:
        return [*([self.answer] if self.answer else []), *(figure for part in self.sections for figure in part.figures)]

    @property
    def headline(self) -> str:
        """The verdict and the first of its numbers, for a list of studies."""
        return plain(" ".join(filter(None, [self.verdict, *self.numbers[:1]])))

    def markdown(self) -> str:
        """`table.md`: all but figures, excerpts and what is folded."""
        blocks = [
            f"# {self.title}",
            f"**{self.verdict}**" if self.verdict else "",
            self.lead,
            _points(self.numbers),
            f"{NOT_SHOWN}\n\n{_points(self.not_shown)}" if self.not_shown else "",
            self.question,
            _points(self.facts),
            *(section.markdown() for section in self.sections),
        ]
        return "\n\n".join(filter(None, blocks)) + "\n"

    def text(self, beside: str) -> str:
        """Plain text for an e-mail: the first screen in words; `beside` says where the rest is."""
        not_shown = [f"NOT SHOWN\n\n{_wrap_points(self.not_shown)}"] if self.not_shown else []
        paragraphs = [wrap(text) for text in filter(None, [self.title, self.verdict, self.lead])]
        blocks = [*paragraphs, _wrap_points(self.numbers), *not_shown, wrap(self.question)]
        return "\n\n".join(filter(None, [*blocks, _wrap_points(self.facts), wrap(beside)])) + "\n"


def plain(text: str) -> str:
    """Text without the marks of bold, for a place that shows no Markdown."""
    return text.replace("**", "")


def wrap(text: str, indent: str = "") -> str:
    """Plain text in lines of bounded length, of which those after the first begin with spaces as long as `indent`."""
    return textwrap.fill(
        plain(text),
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _wrap_points(texts: Sequence[str]) -> str:
    return "\n".join(wrap(text, "- ") for text in texts)


def _points(texts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)
