"""A report as one HTML page that needs nothing else: no request, no script, light and dark, narrow and wide, print.

The template and the style stand here as strings, and not in files of their own, because they are part of what a
stage computes: a stage's version stands for the Python sources that it is made of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from tasks.report.table import Link, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --faint: #5c5c5c; --grid: #d9d9d9; --paper: #ffffff; --side: #f4f5f6;
  --link: #00578f; --series-1: #666666; --series-2: #0067a8; --series-3: #b84a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --faint: #a6a6a6; --grid: #3b3e42; --paper: #16181b;
  --side: #202327; --link: #79bdf0; --series-1: #a8a8a8; --series-2: #5aaeea; --series-3: #f2914a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--grid); }
p, ul { max-width: 46rem; margin: .6rem 0; }
ul { padding-left: 1.25rem; }
li { margin: .35rem 0; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 1rem 0; list-style: none;
  max-width: none; }
.lead { color: var(--faint); }
.facts { background: var(--side); border-left: .25rem solid var(--series-2); padding: .5rem 1rem; margin: 1rem 0; }
.facts ul { max-width: 52rem; }
.scroll { overflow-x: auto; margin: 0 0 1rem; max-width: 100%;  /* a shadow at the side where there is more */
  background: linear-gradient(to right, var(--paper), var(--paper)) left / 1.5rem 100% no-repeat local,
    linear-gradient(to left, var(--paper), var(--paper)) right / 1.5rem 100% no-repeat local,
    linear-gradient(to right, var(--faint), transparent) left / .6rem 100% no-repeat scroll,
    linear-gradient(to left, var(--faint), transparent) right / .6rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.caption { color: var(--faint); font-size: .9rem; margin: 1.25rem 0 .35rem; break-after: avoid; }
th, td { padding: .3rem 1.1rem .3rem 0; border-bottom: 1px solid var(--grid); text-align: left; vertical-align: top;
  white-space: nowrap; }
th { border-bottom: 2px solid var(--faint); }
th.right, td.right { text-align: right; }
td.code, pre, code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .85rem; }
td.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem 2rem;
  align-items: start; }
figure { margin: 1rem 0; }
.figures figure:nth-child(2):nth-last-child(2) { grid-row: span 2; }
figure svg { width: 100%; max-width: 30rem; height: auto; display: block; }
figcaption { color: var(--faint); font-size: .9rem; max-width: 30rem; margin-top: .25rem; }
pre { overflow: auto; background: var(--side); padding: .75rem; max-height: 40rem; }
summary { cursor: pointer; color: var(--link); }
@media print {
  :root { --ink: #000; --faint: #444; --grid: #bbb; --paper: #fff; --side: #fff; --link: #000;
    --series-1: #666666; --series-2: #0067a8; --series-3: #b84a00; color-scheme: light; }
  html { font-size: 9.5pt; }
  body { max-width: none; padding: 0; }
  nav { display: none; }
  .scroll, pre { overflow: visible; max-height: none; background: none; }
  th, td { white-space: normal; padding-right: .5rem; }
  td.code, pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  figure, tr, .facts { break-inside: avoid; }
  h2 { break-after: avoid; }
  details::details-content { content-visibility: visible; height: auto; }
}
"""

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ title }}</h1>
<p class="lead">{{ lead }}</p>
<div class="facts"><ul>{% for fact in facts %}<li>{{ fact | strong }}</li>{% endfor %}</ul></div>
<nav aria-label="Contents"><ul>
{%- for section in sections %}<li><a href="#{{ section.anchor }}">{{ section.title }}</a></li>{% endfor %}</ul></nav>
</header>
<main>
{%- for section in sections %}
<section id="{{ section.anchor }}">
<h2>{{ section.title }}</h2>
{%- for text in section.texts %}
<p>{{ text | strong }}</p>
{%- endfor %}
{%- if section.points %}
<ul>{% for point in section.points %}<li>{{ point | strong }}</li>{% endfor %}</ul>
{%- endif %}
{%- if section.figures %}
<div class="figures">
{%- for figure in section.figures %}
<figure>{{ figure.svg | svg }}<figcaption>{{ figure.caption }}</figcaption></figure>
{%- endfor %}
</div>
{%- endif %}
{%- for table in section.tables %}
<p class="caption">{{ table.caption }}</p>
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.caption }}"><table aria-label="{{ table.caption }}">
<thead><tr>
{%- for cell in table.header %}<th scope="col"{{ right(table, loop.index0) }}>{{ cell | strong_cell }}</th>{% endfor -%}
</tr></thead>
<tbody>
{%- for row in table.rows %}
<tr>{% for cell in row -%}
<td{{ right(table, loop.index0) or cell_class(cell) }}>{{ cell | strong_cell }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div>
{%- endfor %}
{%- for summary, text in section.details %}
<details><summary>{{ summary }}</summary><pre tabindex="0">{{ text }}</pre></details>
{%- endfor %}
</section>
{%- endfor %}
</main>
</body>
</html>
"""


@dataclass(frozen=True)
class Figure:
    """An SVG element that `tasks.report.figures` made, and what it shows."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page: texts, points, figures, tables and folded details, in this order. All text is escaped."""

    title: str
    texts: Sequence[str] = ()
    points: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    details: tuple[tuple[str, str], ...] = ()

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def html_page(title: str, lead: str, facts: Sequence[str], sections: Sequence[Section]) -> str:
    """The page as HTML. All but the figures is taken as plain text and escaped, and what stands between ** is bold."""
    environment = Environment(loader=DictLoader({"page": TEMPLATE}), autoescape=True, undefined=StrictUndefined)
    environment.filters |= {"svg": Markup, "strong": _strong, "strong_cell": _strong_cell}
    environment.globals.update(right=_right, cell_class=_cell_class)
    template = environment.get_template("page")
    return template.render(title=title, lead=lead, facts=facts, sections=sections, style=Markup(STYLE)) + "\n"


def _strong(text: str) -> Markup:
    """Text with what stands between ** in bold; all of it escaped."""
    parts = re.split(r"\*\*(.+?)\*\*", text)
    return Markup("").join(
        Markup("<strong>{}</strong>").format(part) if odd % 2 else part for odd, part in enumerate(parts)
    )


def _strong_cell(cell: object) -> Markup | object:
    """A link, or a cell that is bold as a whole; in any other cell asterisks are text, such as a model's."""
    if isinstance(cell, Link):
        return Markup('<a href="{}">{}</a>').format(cell.target, cell.text)
    return _strong(cell) if isinstance(cell, str) and re.fullmatch(r"\*\*[^*]+\*\*", cell) else cell


def _right(table: Table, column: int) -> str:
    return Markup(' class="right"') if table.right[column] else Markup("")


def _cell_class(cell: object) -> str:
    """The class of a cell of text: digests in a fixed width; what is long may wrap."""
    text = str(cell)
    if re.fullmatch(r"[0-9a-f]{12,}", text):
        return Markup(' class="code"')
    return Markup(' class="long"') if len(text) > 60 else Markup("")
