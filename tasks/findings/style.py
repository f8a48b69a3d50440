"""The style of a page, light and dark, narrow and wide, on paper, and its one script.

The script sorts the rows of a table by the column whose head is clicked, and backwards by a second click. It makes the
buttons itself, so that a page without scripts shows none. The page's Content-Security-Policy names the script by its
digest, and no other one runs there.
"""

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --faint: #5c5c5c; --grid: #d9d9d9; --paper: #ffffff; --side: #f4f5f6;
  --link: #00578f; --mark: #ffe59a; --series-1: #666666; --series-2: #0067a8; --series-3: #b84a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --faint: #a6a6a6; --grid: #3b3e42; --paper: #16181b;
  --side: #202327; --link: #79bdf0; --mark: #5c4400;
  --series-1: #a8a8a8; --series-2: #5aaeea; --series-3: #f2914a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 110rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; overflow-wrap: break-word; }
h1 { font-size: clamp(1.1rem, 1rem + .4vw, 1.35rem); line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid var(--grid); }
p, ul { max-width: 46rem; margin: .6rem 0; }
ul { padding-left: 1.25rem; }
li { margin: .35rem 0; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1rem; padding: 0; margin: 1rem 0; list-style: none;
  max-width: none; }
@media (min-width: 78rem) {  /* the contents beside the page, where there is room for both */
  body { display: grid; grid-template-columns: 13rem minmax(0, 1fr); column-gap: 3rem; padding: 1.5rem 2.5rem 4rem; }
  nav { grid-row: 1 / 3; position: sticky; top: 1rem; align-self: start; max-height: calc(100vh - 2rem);
    overflow-y: auto; font-size: .9rem; }
  nav ul { display: block; }
  header, main { grid-column: 2; } }
.verdict { font-size: clamp(1.35rem, 1.2rem + .7vw, 1.9rem); font-weight: 700; line-height: 1.25; max-width: 58rem;
  margin: .75rem 0 .5rem; padding-left: 1rem; border-left: .3rem solid var(--series-2); }
.lead { font-size: 1.1rem; max-width: 58rem; }
.faint, .facts > p { color: var(--faint); }
.facts > p { margin: 0; }
.facts { background: var(--side); padding: .5rem 1rem; margin: 1rem 0; }
.facts ul { max-width: 52rem; margin: 0; }
.facts ul:has(li:nth-child(4)), section > ul:has(li:nth-child(6)) { max-width: none; columns: 2 34rem;
  column-gap: 3rem; }
li { break-inside: avoid; }
.tables { display: flex; flex-wrap: wrap; gap: 0 3.5rem; align-items: flex-start; }
.table { max-width: 100%; min-width: min(100%, 34rem); }
.scroll { overflow-x: auto; margin: 0 0 1rem; max-width: 100%;  /* a shadow at the side where there is more */
  background: linear-gradient(to right, var(--paper), var(--paper)) left / 1.5rem 100% no-repeat local,
    linear-gradient(to left, var(--paper), var(--paper)) right / 1.5rem 100% no-repeat local,
    linear-gradient(to right, var(--faint), transparent) left / .6rem 100% no-repeat scroll,
    linear-gradient(to left, var(--faint), transparent) right / .6rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
.caption { color: var(--faint); font-size: .9rem; margin: 1.25rem 0 .35rem; break-after: avoid;
  contain: inline-size; }  /* as wide as its table, which it makes no wider */
th, td { padding: .3rem 1.4rem .3rem 0; border-bottom: 1px solid var(--grid); text-align: left; vertical-align: top;
  white-space: nowrap; }
th { border-bottom: 2px solid var(--faint); }
th button { all: unset; position: relative; cursor: pointer; font-weight: inherit; }
th button::after { content: "\\2195"; position: absolute; margin-left: .2rem; color: var(--faint); font-weight: 400;
  opacity: .55; }
th[aria-sort] button::after { color: var(--ink); opacity: 1; }
th[aria-sort="ascending"] button::after { content: "\\2191"; }
th[aria-sort="descending"] button::after { content: "\\2193"; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
tr:target { background: var(--mark); }
th.right, td.right { text-align: right; }
td.code, pre, code { font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: .85rem; }
td.long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1rem 2rem;
  align-items: start; }
figure { margin: 1rem 0; }
.figures figure:nth-child(2):nth-last-child(2) { grid-row: span 2; }
figure svg { width: 100%; max-width: 30rem; height: auto; display: block; }
.answer svg { max-width: 42rem; }
.answer figcaption { max-width: 46rem; }
figcaption { color: var(--faint); font-size: .9rem; max-width: 30rem; margin-top: .25rem; }
.excerpt figcaption { max-width: 46rem; }
.excerpts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 36rem), 1fr)); gap: 0 2.5rem; }
.excerpt dl { margin: .35rem 0 0; padding: .5rem .75rem; background: var(--side); font-size: .85rem; }
.excerpt dt { color: var(--faint); }
.excerpt dd { margin: 0 0 .4rem; overflow-wrap: anywhere; white-space: pre-wrap;
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
mark { color: inherit; background: var(--mark); font-weight: 700; text-decoration: underline; }
pre { overflow: auto; background: var(--side); padding: .75rem; max-height: 40rem; }
summary { cursor: pointer; color: var(--link); }
.section { border-top: 1px solid var(--grid); }
.section > summary { padding: .6rem 0; }
.section > summary h2 { display: inline; margin: 0; padding: 0; border: 0; }
section[id] { scroll-margin-top: 3.5rem; }
@media print {
  :root { --ink: #000; --faint: #444; --grid: #bbb; --paper: #fff; --side: #fff; --link: #000; --mark: #eee;
    --series-1: #666666; --series-2: #0067a8; --series-3: #b84a00; color-scheme: light; }
  html { font-size: 9.5pt; }
  body { max-width: none; padding: 0; }
  nav, th button::after { display: none; }
  .scroll, pre { overflow: visible; max-height: none; background: none; }
  th, td { white-space: normal; padding-right: .5rem; }
  td.code, pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  figure, tr, .facts { break-inside: avoid; }
  h2 { break-after: avoid; }
  details::details-content { content-visibility: visible; height: auto; }
}
"""

SCRIPT = """
"use strict";
// the number that a cell begins with: +0.3518 to +0.4025, 4,188.43, > 1e300, 7.70%, 65/65
const NUMBER = /^[<>]?\\s*([+-]?(?:\\d[\\d,]*(?:\\.\\d+)?|\\.\\d+)(?:e[+-]?\\d+)?)\\s*%?(?=$| to |\\/)/i;
const shown = (row, column) => row.cells[column].textContent.trim();
const number = (text) => {
  const found = NUMBER.exec(text);
  return found ? Number(found[1].replaceAll(",", "")) : NaN;
};

function sorted(rows, column, direction) {
  const texts = rows.map((row) => shown(row, column)).filter((text) => text !== "" && text !== "-");
  const numeric = texts.filter((text) => !Number.isNaN(number(text))).length * 2 > texts.length;
  const missing = (text) => (numeric ? Number.isNaN(number(text)) : text === "" || text === "-");
  return [...rows].sort((one, other) => {
    const [a, b] = [shown(one, column), shown(other, column)];
    if (missing(a) || missing(b)) return missing(a) - missing(b);  // last, whichever way the others stand
    return direction * (numeric ? number(a) - number(b) : a.localeCompare(b, "en", { numeric: true }));
  });
}

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  if (rows.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { null: "ascending", ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      if (next) head.setAttribute("aria-sort", next);
      body.replaceChildren(...(next ? sorted(rows, column, next === "ascending" ? 1 : -1) : rows));
    });
  });
}
"""

POLICY_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
"""The name of the script in a Content-Security-Policy."""
