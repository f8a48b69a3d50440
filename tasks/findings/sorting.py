"""The one script of a page: a click on the head of a column sorts the rows by it, a second one backwards.

It makes the buttons itself, so that a page without scripts shows none. The page's Content-Security-Policy names the
script by its digest, and no other one runs there.
"""

from __future__ import annotations

import base64
import hashlib

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
"""What a Content-Security-Policy calls the script."""
