"""sweep: the cells of a sweep side by side, of any study, and which of their differences the seeds show."""

from __future__ import annotations

import csv
import io

from storage.lineage import Lineages
from tasks.findings.document import Document
from tasks.findings.provenance import run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.sweep.arms import arms_of, compare_metrics, dropped_values
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.sweep.figures import answer
from tasks.findings.sweep.results import SweepResults, collect, metrics_of
from tasks.findings.sweep.tables import compared_first, facts, numbers, question, sections, title, verdict
from tasks.findings.table import no_formula
from tasks.stage.run import StageInput, StageRun
from tasks.training.unlearned import unlearned

CELLS = "cells.csv"


def sweep(run: StageRun, config: SweepConfig, **cells: StageInput) -> Published:
    """Verifies every byte that it reads, and writes tables, figures and the report over all cells."""
    results, document = read_cells(run, config, cells)
    return publish_report(run, cells, results, document, texts=cells_csv(results, config))


def read_cells(run: StageRun, config: SweepConfig, cells: dict[str, StageInput]) -> tuple[SweepResults, Document]:
    """The cells' numbers, verified, and a report of them; a study may answer in words of its own instead."""
    require_verified(cells)
    results = collect(config, cells, run_directories(cells, run.run.root))
    metrics = metrics_of(results, config.numbers)
    results = results.model_copy(update={"comparisons": compare_metrics(results, metrics, config.confidence_level)})
    cautions, lineages = facts(results), Lineages()
    cautions += dropped_values(results, metrics) if results.has_seeds else []
    if nothing := unlearned(ancestor for cell in cells.values() for ancestor in lineages.of(cell.run).runs()):
        cautions.append(f"**{nothing}.**")
    return results, Document(
        title(results),
        verdict(results, metrics),
        numbers=numbers(results),
        answer=answer(results, compared_first(results)),
        not_shown=cautions,
        question=question(results),
        sections=sections(results, metrics, config.confidence_level),
    )


def cells_csv(results: SweepResults, config: SweepConfig) -> dict[str, str]:
    """A line for each arm and seed with a column for each metric, as `ratchet compare` takes it; nothing without seeds.

    A number that a line does not have is empty.
    """
    if not results.has_seeds:
        return {}
    metrics = metrics_of(results, config.numbers)
    of_metrics = {metric.title: arms_of(results, metric) for metric in metrics}
    lines = dict.fromkeys(
        (arm, seed) for arms in of_metrics.values() for arm, of_arm in arms.items() for seed in of_arm
    )
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["arm", "seed", *map(no_formula, of_metrics)])
    for arm, seed in lines:
        values = [arms.get(arm, {}).get(seed, "") for arms in of_metrics.values()]
        writer.writerow([no_formula(arm), seed, *values])
    return {CELLS: file.getvalue()}
