"""What stands in `report.html` of the inversion study, and in which order."""

from __future__ import annotations

from tasks.inversion.final_results import FinalResults
from tasks.inversion.tables import (
    arm_table,
    cell_table,
    difference_table,
    early_stop_table,
    negative_table,
    out_of_distribution_differences,
    out_of_distribution_table,
    recorded_table,
)
from tasks.inversion.words import LIMITS, QUESTION, about_negatives, about_training, answer, facts, recorded_claims
from tasks.report.page import Figure, Section, html_page
from tasks.report.provenance import beside


def html_report(results: FinalResults, drawn: dict[str, Figure], provenance: Section) -> str:
    """The report as one HTML page; a function of its arguments."""
    sections = [
        Section(
            "The arms",
            figures=[drawn[name] for name in ("arms", "dose", "differences") if name in drawn],
            tables=[arm_table(results), difference_table(results)],
        ),
        Section(
            "Out of distribution",
            texts=["The same networks on harder matrices, nearer to singular ones than any that they were trained on."],
            tables=[out_of_distribution_table(results), out_of_distribution_differences(results)],
        ),
        Section(
            "The trainings",
            points=about_training(results),
            figures=[drawn["ways"], drawn["best-and-last"]],
            tables=[cell_table(results), early_stop_table(results)],
        ),
        Section(
            "The negatives",
            texts=["Are hard negatives near-singular, or not wrong at all, or all alike? Asked of trained networks."],
            points=about_negatives(results),
            figures=[drawn[name] for name in ("conditioning", "distance", "energy-gap")],
            tables=[negative_table(results)],
        ),
        Section("The recorded study", points=recorded_claims(), tables=[recorded_table()]),
        Section("Limits", points=LIMITS),
        provenance,
    ]
    return html_page(
        f"{results.study}: does mining negatives help?",
        QUESTION,
        facts(results),
        sections,
        answer=answer(results),
        beside=beside(["table.md", "figures/"]),
    )
