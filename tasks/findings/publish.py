"""A report verifies the inputs that it reads, and publishes its contents with the digest of its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from storage import durable
from storage.lineage import Lineages
from tasks.findings.dag import Dag
from tasks.findings.document import Document, plain
from tasks.findings.page import html_page
from tasks.findings.provenance import beside, provenance_section
from tasks.stage.attempt import require_verified as require_verified  # a report asks it of what it reads
from tasks.stage.result import Result, as_json
from tasks.stage.run import StageInput, StageRun
from tasks.training.unlearned import unlearned

SUMMARY = "experiment_summary.txt"
BESIDE_SUMMARY = (
    "Beside this file: report.html (opens in any browser, needs no network: every table and figure, and the run "
    "directory of each number), table.md, figures/, and final_results.json with every number."
)


class Published(Result):
    """The files of a report by name: Markdown files as `tables`, an HTML file as `report`.

    `headline` is the answer in one line; `answer`, in several: the verdict and its numbers; `not_shown`: their limits.
    """

    tables: list[str]
    figures: list[str] = Field(default_factory=list)
    report: str | None = None
    headline: str = ""
    answer: list[str] = Field(default_factory=list)
    not_shown: list[str] = Field(default_factory=list)
    final_results_digest: str


def publish_report(
    run: StageRun,
    inputs: Mapping[str, StageInput],
    results: Result | dict[str, Any],
    document: Document,
    tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    texts: Mapping[str, str] | None = None,
) -> Published:
    """Writes the report in every form, with where its numbers come from at its end: see `publish`.

    `report.html`, `table.md`, `experiment_summary.txt`, `figures/` and `final_results.json` are functions of `inputs`,
    the stages that were read, by name. For whoever computes with them `tables` are rows, each written as
    `<name>.parquet`, and `texts` files by name.
    """
    if isinstance(results, dict) and (nothing := unlearned(Lineages().of(run.run).runs())):
        document = replace(document, not_shown=[*document.not_shown, f"**{nothing}.**"])
    dag = Dag.of(run, inputs.values())
    document = replace(document, sections=[*document.sections, provenance_section(run, inputs, dag)])
    for name, rows in (tables or {}).items():
        with run.publish_file(f"{name}.parquet") as file:
            pq.write_table(pa.Table.from_pylist(rows), file)
    files = ["table.md", SUMMARY, "figures/", *(texts or {})]
    contents = {
        "table.md": document.markdown(),
        SUMMARY: document.text(BESIDE_SUMMARY),
        "report.html": html_page(document, beside(files), folded=True),
        **(texts or {}),
    }
    figures = {figure.name: figure.svg for figure in document.figures}
    published = publish(run, results, contents, figures, document.headline)
    answer = [plain(text) for text in (document.verdict, *document.numbers) if text]
    return published.model_copy(update={"answer": answer, "not_shown": [plain(text) for text in document.not_shown]})


def publish(
    run: StageRun,
    results: Result | dict[str, Any],
    texts: Mapping[str, str],
    figures: Mapping[str, str] | None = None,
    headline: str = "",
) -> Published:
    """Writes `final_results.json`, the `texts` by file name and `figures/<name>.svg`, where no `Document` says it.

    Returns the stage's result, which names them. `headline` is the answer in one line, for a list of studies. Raises
    ValueError for two HTML files.
    """
    numbers = as_json(results)
    with run.publish_file("final_results.json") as file:
        durable.write_json(file, numbers)
    for name, text in texts.items():
        with run.publish_file(name) as file:
            file.write_text(text, encoding="utf-8")
    if figures:
        with run.publish("figures") as folder:
            for name, svg in figures.items():
                durable.write_bytes(folder / f"{name}.svg", svg.encode())
    reports = [name for name in texts if name.endswith(".html")]
    if len(reports) > 1:
        raise ValueError(f"one report is shown, and these are too many: {', '.join(reports)}")
    return Published(
        tables=[name for name in texts if name.endswith(".md")],
        figures=[f"figures/{name}.svg" for name in figures or ()],
        report=reports[0] if reports else None,
        headline=headline,
        final_results_digest=durable.sha256_json(numbers),
    )
