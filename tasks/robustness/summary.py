"""`experiment_summary.txt`: the study for an email, as plain text."""

from __future__ import annotations

from tasks.report.cautions import plain
from tasks.report.plain_text import paragraph, points
from tasks.robustness.attack_words import attack_cautions, how_attacked
from tasks.robustness.final_results import FinalResults
from tasks.robustness.words import (
    EARLIER_SYSTEM,
    LIMITS,
    QUESTION,
    cautions,
    facts,
    models,
    the_text,
    verified,
    what_was_studied,
)


def summary(results: FinalResults) -> str:
    """What was studied, the main numbers with intervals, what must be kept in mind, and where everything lies."""
    attacks = [how_attacked(name, results) for name in results.attacks.by_name()]
    to_keep_in_mind = [
        *map(plain, cautions(results)),
        verified(results),
        *attack_cautions(results),
        *LIMITS,
        EARLIER_SYSTEM,
    ]
    blocks = [
        f"{results.study}, seed {results.seeds[0]}",
        paragraph(f"{QUESTION} {what_was_studied(results)}"),
        "WHAT WAS DONE\n\n" + points([the_text(results), *models(results), *attacks]),
        "MAIN NUMBERS\n\n" + points([plain(fact) for fact in facts(results)]),
        "TO KEEP IN MIND\n\n" + points(to_keep_in_mind),
        "WHERE IT IS\n\n"
        + "\n".join(f"  {stage:<16} {directory}" for stage, directory in results.runs.items())
        + "\n\n"
        + paragraph(
            "Beside this file: report.html (opens in any browser, needs no network), table.md, figures/, and "
            "final_results.json with every number."
        ),
    ]
    return "\n\n".join(blocks) + "\n"
