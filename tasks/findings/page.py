"""A report as one HTML page that needs nothing else: no request, light and dark, narrow and wide, print.

Without scripts it shows the same; its one script sorts tables. The template, the style and the script stand in Python
files, and not in files of their own kind, because they are part of what a stage computes: a stage's version stands for
the Python sources that it is made of.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup, escape

from storage.visible import visible
from tasks.findings.document import Document
from tasks.findings.style import POLICY_SOURCE, SCRIPT, STYLE
from tasks.findings.table import Link, Table

TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<link rel="icon" href="data:,">
<title>{{ document.title }}</title>
<style>{{ style }}</style>
</head>
<body>
<header>
<h1>{{ document.title }}</h1>
{%- if document.verdict %}
<p class="verdict">{{ document.verdict | strong }}</p>
{%- endif %}
{%- if document.lead %}
<p class="lead">{{ document.lead | strong }}</p>
{%- endif %}
{%- if document.answer %}
<figure class="answer">{{ document.answer.svg | svg }}<figcaption>{{ document.answer.caption }}</figcaption></figure>
{%- endif %}
{%- if document.not_shown %}
<div class="facts"><p>Not shown, and to keep in mind</p>
<ul>{% for point in document.not_shown %}<li>{{ point | strong }}</li>{% endfor %}</ul></div>
{%- endif %}
{%- if document.question %}
<p class="faint">{{ document.question | strong }}</p>
{%- endif %}
{%- if document.facts %}
<ul>{% for fact in document.facts %}<li>{{ fact | strong }}</li>{% endfor %}</ul>
{%- endif %}
{%- if beside %}
<p class="faint">Beside this page: {% for link in beside %}{{ link | cell }}{{ ", " if not loop.last }}{% endfor %}.</p>
{%- endif %}
</header>
<nav aria-label="Contents"><ul>
{%- for section in document.sections %}<li><a href="#{{ section.anchor }}">{{ section.title }}</a></li>{% endfor %}</ul>
</nav>
<main>
{%- for section in document.sections %}
{%- if folded %}
<details class="section"><summary><h2>{{ section.title }}</h2></summary>
{%- else %}
<h2>{{ section.title }}</h2>
{%- endif %}
<section id="{{ section.anchor }}">
{%- for text in section.texts %}
<p>{{ text | strong }}</p>
{%- endfor %}
{%- if section.points %}
<ul>{% for point in section.points %}<li>{{ point | strong }}</li>{% endfor %}</ul>
{%- endif %}
{%- for figure in section.figures %}
{%- if loop.first %}
<div class="figures">
{%- endif %}
<figure>{{ figure.svg | svg }}<figcaption>{{ figure.caption }}</figcaption></figure>
{%- if loop.last %}
</div>
{%- endif %}
{%- endfor %}
{{- excerpts(section.excerpts) }}
{%- for table in section.tables %}
{%- if loop.first %}
<div class="tables">
{%- endif %}
<div class="table"><p class="caption">{{ table.caption }}</p>
<div class="scroll" tabindex="0" role="region" aria-label="{{ table.caption }}"><table aria-label="{{ table.caption }}">
<thead><tr>
{%- for cell in table.header %}<th scope="col"{{ right(table, loop.index0) }}>{{ cell | strong }}</th>{% endfor -%}
</tr></thead>
<tbody>
{%- for row in table.rows %}
{%- set id = table.ids[loop.index0] if table.ids else none %}
<tr{% if id %} id="{{ id }}"{% endif %}>{% for cell in row -%}
<td{{ right(table, loop.index0) or cell_class(cell) }}>{{ (cell | cell) if id else (cell | to_run(ids)) }}</td>
{%- endfor %}</tr>
{%- endfor %}
</tbody></table></div></div>
{%- if loop.last %}
</div>
{%- endif %}
{%- endfor %}
{%- for more in section.details %}
<details><summary>{{ more.summary }}</summary>
{%- if more.file %}
<p><a download="{{ more.file }}" href="{{ more.text | file }}">{{ more.file }}</a></p>
{%- endif %}
{%- if more.text %}<pre tabindex="0">{{ more.text }}</pre>{% endif %}
{{- excerpts(more.excerpts) }}</details>
{%- endfor %}
</section>
{%- if folded %}</details>{% endif %}
{%- endfor %}
</main>
<script>{{ script }}</script>
</body>
</html>
"""

EXCERPTS = """
{%- macro excerpts(list) %}
{%- if list %}
<div class="excerpts">
{%- for excerpt in list %}
<figure class="excerpt"><figcaption>{{ excerpt.caption }}</figcaption><dl>
{%- for name, pieces in excerpt.lines.items() %}<dt>{{ name }}</dt><dd>
{%- for text, marked in pieces %}{% if marked %}<mark>{{ text }}</mark>{% else %}{{ text }}{% endif %}{% endfor -%}
</dd>{% endfor %}</dl></figure>
{%- endfor %}
</div>
{%- endif %}
{%- endmacro %}
"""


def html_page(document: Document, beside: Sequence[Link] = (), folded: bool = False) -> str:
    """The page as HTML. All but the figures is taken as plain text and escaped, and what stands between ** is bold.

    `beside` are the files that lie beside it. With `folded` each section opens when its title is clicked, or when a
    link leads into it.
    """
    environment = Environment(
        loader=DictLoader({"page": EXCERPTS + TEMPLATE.lstrip()}), autoescape=True, undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters |= {
        "svg": lambda svg: Markup(visible(svg)),
        "strong": _strong,
        "cell": _cell,
        "to_run": _to_run,
        "file": _as_file,
    }
    environment.globals.update(right=_right, cell_class=_cell_class)
    page = environment.get_template("page").render(
        document=document,
        beside=beside,
        folded=folded,
        ids={id_ for section in document.sections for table in section.tables for id_ in table.ids},
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src {POLICY_SOURCE}; img-src data:",
    )
    return page.strip() + "\n"


def _strong(text: str) -> Markup:
    """Text with what stands between ** in bold, and a command between backticks as code; all of it escaped."""
    bold = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(visible(text))))
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", bold))


def _cell(cell: object) -> Markup | object:
    """A link, or a cell that is bold as a whole; in any other cell asterisks are text, such as a model's."""
    if isinstance(cell, Link):
        return Markup('<a href="{}">{}</a>').format(cell.target, visible(cell.text))
    return _strong(cell) if isinstance(cell, str) and re.fullmatch(r"\*\*[^*]+\*\*", cell) else cell


def _to_run(cell: object, ids: set[str]) -> Markup | object:
    """A cell; the name of a run leads to the row of the page that says where it comes from."""
    return _cell(Link(str(cell), f"#run-{cell}") if f"run-{cell}" in ids else cell)


def _as_file(text: str) -> str:
    """The address of a file that is its own content: it needs no file beside the page."""
    return f"data:text/plain;charset=utf-8,{quote(text, safe=',:;/+-()')}"


def _right(table: Table, column: int) -> str:
    return Markup(' class="right"') if table.right[column] else Markup("")


def _cell_class(cell: object) -> str:
    """The class of a cell of text: digests in a fixed width; what is long may wrap."""
    text = str(cell)
    if re.fullmatch(r"[0-9a-f]{12,}", text):
        return Markup(' class="code"')
    return Markup(' class="long"') if len(text) > 60 else Markup("")
