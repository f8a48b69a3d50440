"""sweep: the cells of a sweep side by side, of any study, and which of their differences the seeds show."""

import itertools
import re

from storage.errors import MESSAGE_SHOWN, cut
from storage.lineage import Lineages
from tasks.findings.arms import arms_figure
from tasks.findings.compare import Compared, Sources, as_csv, comparable, compare
from tasks.findings.document import Document, Figure, Section
from tasks.findings.numbers import span
from tasks.findings.provenance import run_directories, run_name
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import arm_mean
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.sweep.results import SweepResults, collect
from tasks.findings.table import Table
from tasks.stage.run import StageInput, StageRun
from tasks.training.unlearned import unlearned

CELLS = "cells.csv"
MOST_ARMS = 24
"""The most arms of a metric whose differences are tested; one with more is shown alone."""


def sweep(run: StageRun, config: SweepConfig, **cells: StageInput) -> Published:
    """Verifies every byte that it reads, and writes tables, figures and the report over all cells."""
    results, document, texts = read_cells(run, config, cells)
    return publish_report(run, cells, results, document, texts=texts)


def read_cells(
    run: StageRun, config: SweepConfig, cells: dict[str, StageInput], sources: Sources | None = None
) -> tuple[SweepResults, Document, dict[str, str]]:
    """The cells' numbers, verified, a report of them and `cells.csv`, where seeds vary; a study may answer in words of
    its own instead."""
    require_verified(cells)
    results = collect(config, cells, run_directories(cells, run.run.root))
    compared = compare_cells(results, config.confidence_level, sources)
    means = {
        title: {arm.name: arm_mean(arm.by_seed, compared.level) for arm in results.arms(title) if arm.by_seed}
        for title in (results.labels if results.has_seeds else ())
    }
    results = results.model_copy(
        update={"means": means, "comparisons": {title: [*rows] for title, rows in compared.differences.items()}}
    )
    cautions = [*facts(results, config.confidence_level), *dropped_values(results, compared)]
    if compared.rows and sources is None:
        cautions.append("p and intervals of differences are of other seeds alone, not of other texts or events.")
    lineages = Lineages()
    if nothing := unlearned(ancestor for cell in cells.values() for ancestor in lineages.of(cell.run).runs()):
        cautions.append(f"**{nothing}.**")
    finished = f"{len(results.runs)} of {len(results.cells)} cells are finished"
    document = Document(
        f"{results.study}: a sweep over {' and '.join(results.keys)}",
        verdict(results, compared),
        numbers=compared.numbers or _means(results),
        answer=compared.figure,
        not_shown=[*cautions, *compared.not_shown],
        question=f"{finished}. A cell is the same study with one combination of the values of "
        f"{' and '.join(results.keys)}.",
        sections=sections(results, compared),
    )
    return results, document, {CELLS: as_csv(compared.values)} if results.has_seeds else {}


def compare_cells(results: SweepResults, level: float, sources: Sources | None = None) -> Compared:
    """The arms of each metric that some key changes, as the study pairs its numbers, and each combination of other keys
    with the first one; nothing where no seed varies."""
    values, metrics = {}, {}
    groups = [values for values, _ in results.groups()]
    for title, metric in results.metrics.items() if results.has_seeds else ():
        if not results.varied(title):
            continue
        arms, (first, *others) = results.arms(title), results.labels[title]
        named = {(arm.label, str(arm.at)): arm.name for arm in arms}
        beside = [
            [named[label, str(at)], named[reference, str(at)]]
            for at in groups
            for label, reference in metric.pairs or [[other, first] for other in others]
            if {(label, str(at)), (reference, str(at))} <= named.keys()
        ]
        across = [
            [named[label, str(at)], named[label, str(groups[0])]] for at in groups[1:] for label in (first, *others)
        ]
        values[title] = comparable({arm.name: arm.by_seed for arm in arms})
        pairs = [*beside, *across] if len(values[title]) <= MOST_ARMS else []
        metrics[title] = metric.model_copy(update={"pairs": pairs})
    return compare(values, metrics, level, may_equal=True, sources=sources)


def facts(results: SweepResults, level: float) -> list[str]:
    """The cautions that a reader must know before the numbers."""
    cautions = []
    if results.missing:
        cells = [f"{name} ({cause})" if (cause := results.cells[name].cause) else name for name in results.missing]
        cautions.append(f"Missing, because a stage stopped: {'; '.join(cells)}.")
    if results.has_seeds:
        cautions.append(
            f"Means are over the seeds that are finished, with {level:.0%} intervals of Student's t; one seed alone "
            "has no interval."
        )
    alike = [
        f"{first} and {second}"
        for first, second in itertools.combinations(results.runs, 2)
        if results.cells[first].numbers == results.cells[second].numbers
    ]
    return [*cautions, f"Equal in every number: {'; '.join(alike)}."] if alike else cautions


def dropped_values(results: SweepResults, compared: Compared) -> list[str]:
    """The caution that numbers are compared with nothing, because other arms have none of that seed."""
    lost = dict.fromkeys(
        f"{arm.name} (seed {seed})"
        for title, kept in compared.values.items()
        for arm in results.arms(title)
        for seed in arm.by_seed
        if seed not in kept.get(arm.name, {})
    )
    listing = cut("; ".join(lost), MESSAGE_SHOWN)
    return [f"Not compared, and not in {CELLS}, since not every arm has that seed: {listing}."] if lost else []


def verdict(results: SweepResults, compared: Compared) -> str:
    """The answer of the seeds, or why there is none, in a line."""
    if not results.has_seeds:
        within = any(metric.pairs for metric in results.metrics.values())
        own = "; its own report compares the arms of each" if within else ""
        return f"Not compared: no seed varies between the cells, and a difference may be chance{own}."
    if compared.first:
        return compared.verdict
    if not any(map(results.varied, results.labels)):
        return "Not compared: no number differs between the cells."
    return f"Not compared: there is one arm, or more than {MOST_ARMS}, of each number."


def _means(results: SweepResults) -> list[str]:
    """Up to three means, where nothing is compared and the seed alone varies."""
    means = {
        title if name == "all seeds" else f"{title}, {name}": mean
        for title, each in results.means.items()
        for name, mean in each.items()
        if mean.interval and not results.other_keys
    }
    return [
        f"{name}: {NUMBER(mean.mean)} (interval {span(mean.interval, NUMBER)}; {len(mean.values)} seeds)"
        for name, mean in [*means.items()][:3]
    ]


def sections(results: SweepResults, compared: Compared) -> list[Section]:
    """A section for each metric of which a number differs between the cells, and one for all that are equal."""
    parts = []
    for title, labels in results.labels.items():
        if results.varied(title):
            means = results.means.get(title, {})
            tables = [compared.mean_table(means, title)] if any(mean.interval for mean in means.values()) else []
            tables = [*compared.table(title), *tables, _cell_table(results, title, labels)]
            parts.append(Section(title, figures=[figure_of(results, title)], tables=tables))
    constant = [
        [", ".join(filter(None, (title, label))), NUMBER(results.cells[next(iter(results.runs))].numbers[title][label])]
        for title, labels in results.labels.items()
        for label in labels
        if results.is_equal(title, label)
    ]
    if constant:
        caption = "Numbers that every finished cell has alike, whatever run they are read from."
        parts.append(Section("Equal in every cell", tables=[Table(caption, ["number", "value"], constant)]))
    return parts


def _cell_table(results: SweepResults, title: str, labels: list[str]) -> Table:
    """A row for each cell with all numbers of the metric, and the run directory that they are read from."""
    rows = []
    for cell in results.cells.values():
        numbers = cell.numbers.get(title, {})
        shown = [
            MISSING if cell.run is None else NUMBER(numbers[label]) if label in numbers else "-" for label in labels
        ]
        rows.append([*map(str, cell.values), *shown, run_name(cell.run or "-")])
    return Table(f"{title}: every cell.", [*results.keys, *(labels if len(labels) > 1 else ["value"]), "run"], rows)


MISSING = "missing"
NUMBER = "{:.6g}".format


def figure_of(results: SweepResults, title: str) -> Figure:
    """All arms of a metric on one axis: every cell, and the mean over seeds."""
    varied = results.varied(title)
    arms = [arm for arm in results.arms(title) if arm.label in varied]
    lost = {
        arm.name: MISSING if arm.missing == arm.cells else f"{arm.missing} {MISSING}" for arm in arms if arm.missing
    }
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    name = f"number-{[*results.labels].index(title) + 1:02d}-{slug}"
    return arms_figure(name, title, {arm.name: arm.by_seed for arm in arms}, results.means.get(title, {}), lost)
