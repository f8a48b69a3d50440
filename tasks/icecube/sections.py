"""What stands in `report.html` of the direction study, and in which order."""

from __future__ import annotations

from tasks.icecube.final_results import FinalResults
from tasks.icecube.tables import failure_table, input_table, rate_table, recorded_table, training_table, trial_table
from tasks.icecube.words import QUESTION, about_rates, about_training, answer, facts, limits
from tasks.report.page import Figure, Section, html_page
from tasks.report.provenance import beside


def html_report(results: FinalResults, drawn: dict[str, Figure], provenance: Section) -> str:
    """The report as one HTML page; a function of its arguments."""
    failures = failure_table(results)
    sections = [
        Section(
            "The trials",
            texts=[
                "Each is the training as it was found, at the size of this profile, with what is given beside its "
                "name. That it fails is a result."
            ],
            figures=[drawn[name] for name in ("trials", "ways") if name in drawn],
            tables=[trial_table(results), *([failures] if failures.rows else [])],
        ),
        Section(
            "The inputs",
            texts=[
                "Read once over the train split. Not finite values, constant columns and, after normalising, values "
                "beyond the limit end the study before anything is trained."
            ],
            tables=[input_table(results)],
        ),
        Section(
            "The learning rates",
            points=about_rates(results),
            figures=[drawn["rates"]],
            tables=[rate_table(results), recorded_table()],
        ),
        Section(
            "The training",
            points=about_training(results),
            figures=[drawn["training"]],
            tables=[training_table(results)],
        ),
        Section("Limits", points=limits(results)),
        provenance,
    ]
    return html_page(
        f"{results.study}: what kept the network from learning?",
        QUESTION,
        facts(results),
        sections,
        answer=answer(results),
        beside=beside(["table.md", "figures/"]),
    )
