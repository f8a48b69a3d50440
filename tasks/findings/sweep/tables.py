"""The table and the report of a sweep: each number of every cell, and its mean over seeds with an interval."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tasks.findings.arms import differences_in_words, number_line, why_not_shown
from tasks.findings.comparison_table import comparison_table
from tasks.findings.document import Section
from tasks.findings.numbers import span
from tasks.findings.provenance import run_name
from tasks.findings.sweep.arms import MIN_SEEDS, MOST_ARMS, words_of
from tasks.findings.sweep.figures import MISSING, NUMBER, figures_of, mean_of, numbers_of_cells
from tasks.findings.sweep.results import CellNumbers, Metric, OverSeeds, SweepResults
from tasks.findings.table import Table


def title(results: SweepResults) -> str:
    return f"{results.study}: a sweep over {' and '.join(results.keys)}"


def question(results: SweepResults) -> str:
    cells = f"{len(results.runs)} of {len(results.cells)} cells are finished"
    return f"{cells}. A cell is the same study with one combination of the values of {' and '.join(results.keys)}."


def facts(results: SweepResults) -> list[str]:
    """The cautions that a reader must know before the numbers."""
    cautions = []
    if results.missing:
        cells = [f"{name} ({cause})" if (cause := results.cells[name].cause) else name for name in results.missing]
        cautions.append(f"Missing, because a stage stopped: {'; '.join(cells)}.")
    if results.has_seeds:
        level = next((mean.confidence_level for over in results.over_seeds for mean in over.numbers.values()), None)
        intervals = f", with {level:.0%} intervals of Student's t" if level else ""
        cautions.append(f"Means are over the seeds that are finished{intervals}; one seed alone has no interval.")
    alike = [
        f"{first} and {second}"
        for first, second in itertools.combinations(results.runs, 2)
        if results.cells[first].numbers == results.cells[second].numbers
    ]
    if alike:
        cautions.append(f"Equal in every number: {'; '.join(alike)}.")
    return cautions


def verdict(results: SweepResults, metrics: Sequence[Metric]) -> str:
    """The answer of the seeds about the first metric, and about the next of which they show something, in a line."""
    if not results.has_seeds:
        within = any(one.pairs for one in results.judged.values())
        own = "; its own report compares the arms of each" if within else ""
        return f"Not compared: no seed varies between the cells, and a difference may be chance{own}."
    if not results.comparisons:
        return f"Not compared: {_why_not_compared(results)}."
    words = {metric.title: words_of(metric) for metric in metrics}
    shown = {title: differences_in_words(rows, words[title]) for title, rows in results.comparisons.items()}
    if not shown[title := compared_first(results)]:
        why = why_not_shown(results.comparisons[title], MIN_SEEDS, words[title])
        shown[title] = f"{why[0].lower()}{why[1:-1]}"
    return " ".join([f"{title}: {said}." for title, said in shown.items() if said][:2])


def _why_not_compared(results: SweepResults) -> str:
    if set(results.numbers) <= set(results.equal_everywhere):
        return "no number differs between the cells"
    return f"there is one arm, or more than {MOST_ARMS}, of each number"


def compared_first(results: SweepResults) -> str:
    """The title of the metric that answers: the first one of which anything was compared; empty without any."""
    return next(iter(results.comparisons), "")


def numbers(results: SweepResults) -> list[str]:
    """Up to three differences of the first metric, those that are shown before the others; without any, means."""
    if not (title := compared_first(results)):
        means = (
            next(iter(results.over_seeds), OverSeeds(values=[], numbers={})).numbers if not results.other_keys else {}
        )
        return [
            f"{name}: {NUMBER(mean.mean)} (interval {span(mean.interval, NUMBER)}; {mean.seeds} seeds)"
            for name, mean in [*means.items()][:3]
        ]
    rows = sorted(results.comparisons.get(title, []), key=lambda row: not (row.better or row.worse))
    return [f"{title}, {number_line(row)}" for row in rows[:3]]


def sections(results: SweepResults, metrics: list[Metric], level: float) -> list[Section]:
    """A section for each metric of which a number differs between the cells, and one for all that are equal."""
    parts, constant = [], results.equal_everywhere
    for metric in metrics:
        varied = [name for name in metric.numbers.values() if name not in constant]
        if not varied:
            continue
        names = f"Full names of these numbers: {metric.form}, with the head of a column in the place of NAME."
        parts.append(
            Section(
                metric.title,
                texts=[names] if len(metric.numbers) > 1 else [],
                figures=figures_of(results, metric),
                tables=[
                    *_difference_tables(results, metric, level),
                    *_mean_table(results, metric),
                    _cell_table(results, metric),
                ],
            )
        )
    if constant:
        numbers = results.cells[next(iter(results.runs))].numbers
        rows = [[name, NUMBER(numbers[name])] for name in constant]
        caption = "Numbers that every finished cell has alike, whatever run they are read from."
        parts.append(Section("Equal in every cell", tables=[Table(caption, ["number", "value"], rows)]))
    return parts


def _difference_tables(results: SweepResults, metric: Metric, level: float) -> list[Table]:
    """The differences that the seeds show; none where nothing was compared."""
    comparisons, together = results.comparisons.get(metric.title, []), sum(map(len, results.comparisons.values()))
    if not comparisons:
        return []
    higher = bool(metric.higher)
    return [comparison_table(comparisons, level, MIN_SEEDS, together, higher_is_better=higher, words=words_of(metric))]


def _mean_table(results: SweepResults, metric: Metric) -> list[Table]:
    """A row for each combination of the other keys and each number; none where no combination has two seeds."""
    several = len(metric.numbers) > 1
    if not any(name in over.numbers for over in results.over_seeds for name in metric.numbers.values()):
        return []
    rows = []
    for values, cells in results.groups():
        for label, name in metric.numbers.items():
            numbers, mean = numbers_of_cells(cells, name), mean_of(results, values, name)
            if mean:
                row = [NUMBER(mean.mean), span(mean.interval, NUMBER), NUMBER(mean.standard_deviation)]
            else:
                row = [NUMBER(numbers[0]) if numbers else MISSING, "-", "-"]
            seeds = f"{len(numbers)} of {len(cells)}"
            rows.append([*map(str, values), *([label] if several else []), *row, seeds])
    header = [*results.other_keys, *(["number"] if several else []), "mean", "interval", "standard deviation", "seeds"]
    return [Table(f"{metric.title}: mean over seeds with its interval.", header, rows)]


def _cell_table(results: SweepResults, metric: Metric) -> Table:
    """A row for each cell with all numbers of the metric, and the run directory that they are read from."""
    names = metric.numbers
    rows = [
        [*map(str, cell.values), *(_value(cell, name) for name in names.values()), run_name(cell.run or "-")]
        for cell in results.cells.values()
    ]
    return Table(
        f"{metric.title}: every cell.", [*results.keys, *(names if len(names) > 1 else ["value"]), "run"], rows
    )


def _value(cell: CellNumbers, name: str) -> str:
    if cell.run is None:
        return MISSING
    return NUMBER(cell.numbers[name]) if name in cell.numbers else "-"
