"""`experiment_summary.txt`: the study for an email, as plain text."""

from __future__ import annotations

import textwrap
from typing import Any

from tasks.robustness.words import (
    LIMITS,
    QUESTION,
    attack_cautions,
    cautions,
    facts,
    how_attacked,
    models,
    the_text,
    verified,
    what_was_studied,
)

COLUMNS = 78


def summary(results: dict[str, Any]) -> str:
    """What was studied, the main numbers with intervals, what must be kept in mind, and where everything lies."""
    plain = [said.replace("**", "") for said in cautions(results)]
    blocks = [
        f"{results['study']}, seed {results['seeds'][0]}",
        _paragraph(f"{QUESTION} {what_was_studied(results)}"),
        "WHAT WAS DONE\n\n"
        + _points([the_text(results), *models(results), *(how_attacked(name, results) for name in results["attacks"])]),
        "MAIN NUMBERS\n\n" + _points(facts(results)),
        "TO KEEP IN MIND\n\n" + _points([*plain, verified(results), *attack_cautions(results), *LIMITS]),
        "WHERE IT IS\n\n"
        + "\n".join(f"  {stage:<16} {place}" for stage, place in results["runs"].items())
        + "\n\n"
        + _paragraph(
            "Beside this file: report.html (opens in any browser, needs no network), table.md, figures/, and "
            "final_results.json with every number."
        ),
    ]
    return "\n\n".join(blocks) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def _points(texts: list[str]) -> str:
    return "\n".join(
        textwrap.fill(
            text,
            COLUMNS,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for text in texts
    )
