"""The arms of a sweep: what the cells have of one metric, seed by seed, and which differences these seeds show."""

from __future__ import annotations

from collections.abc import Sequence

from storage.errors import MESSAGE_SHOWN, cut
from tasks.findings.arms import BETTER, LOWER, Words
from tasks.findings.statistics.comparison import Comparison, Pair, compare_together
from tasks.findings.sweep.results import CellNumbers, Metric, SweepResults

MIN_SEEDS = 3
"""The fewest seeds of which anything is called higher or lower."""
MOST_ARMS = 24
"""The most arms of a metric whose differences are tested; one with more is shown alone."""


def label_values(keys: Sequence[str], values: Sequence[object]) -> str:
    """Values with the last part of their keys: the whole keys head the tables."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in zip(keys, values, strict=True))


def arm_name(results: SweepResults, metric: Metric, label: str, values: Sequence[object]) -> str:
    parts = [label if len(metric.numbers) > 1 else "", label_values(results.other_keys, values)]
    return ", ".join(filter(None, parts)) or "all seeds"


def every_arm(results: SweepResults, metric: Metric) -> dict[str, dict[str, float]]:
    """Name of each arm -> its number by seed."""

    def by_seed(cells: list[CellNumbers], name: str) -> dict[str, float]:
        return {results.seed_of(cell): cell.numbers[name] for cell in cells if name in cell.numbers}

    return {
        arm_name(results, metric, label, values): by_seed(cells, name)
        for values, cells in results.groups()
        for label, name in metric.numbers.items()
    }


def arms_of(results: SweepResults, metric: Metric) -> dict[str, dict[str, float]]:
    """The arms that are compared, with the seeds that all of them have; an arm with fewer is left out."""
    every = every_arm(results, metric)
    most = max(map(len, every.values()), default=0)
    arms = {arm: of_arm for arm, of_arm in every.items() if len(of_arm) > most / 2}
    common = set.intersection(*map(set, arms.values())) if arms else set()
    return {arm: {seed: value for seed, value in of_arm.items() if seed in common} for arm, of_arm in arms.items()}


def words_of(metric: Metric) -> Words:
    """What a lower and a higher value are called."""
    return LOWER if metric.higher is None else BETTER


def pairs_of(results: SweepResults, metric: Metric) -> list[Pair]:
    """Each number of a metric with its first one, or as the study pairs them; each combination of other keys with the
    first one."""
    groups, (first, *others) = [values for values, _ in results.groups()], metric.numbers
    beside = [
        (arm_name(results, metric, label, values), arm_name(results, metric, reference, values))
        for values in groups
        for label, reference in metric.pairs or [(other, first) for other in others]
    ]
    across = [
        (arm_name(results, metric, label, values), arm_name(results, metric, label, groups[0]))
        for values in groups[1:]
        for label in metric.numbers
    ]
    return [*beside, *across]


def dropped_values(results: SweepResults, metrics: Sequence[Metric]) -> list[str]:
    """The caution that numbers are compared with nothing, because other arms have none of that seed."""
    lost = dict.fromkeys(
        f"{arm} (seed {seed})"
        for metric in metrics
        for arms in [arms_of(results, metric)]
        for arm, of_arm in every_arm(results, metric).items()
        for seed in of_arm
        if seed not in arms.get(arm, {})
    )
    listing = cut("; ".join(lost), MESSAGE_SHOWN)
    return [f"Not compared, and not in cells.csv, since not every arm has that seed: {listing}."] if lost else []


def compare_metrics(results: SweepResults, metrics: Sequence[Metric], level: float) -> dict[str, list[Comparison]]:
    """Title of each metric -> its differences, paired by seed, all corrected together; empty where no seed varies."""
    if not results.has_seeds:
        return {}
    constant = results.equal_everywhere
    tables, pairs = {}, {}
    for metric in metrics:
        arms = arms_of(results, metric)
        names = {*metric.numbers.values()}
        if len(arms) > MOST_ARMS or not any(arms.values()) or names <= {*constant} or names & {*results.bookkeeping}:
            continue
        if present := [pair for pair in pairs_of(results, metric) if set(pair) <= arms.keys()]:
            tables[metric.title], pairs[metric.title] = arms, present
    higher = [metric.title for metric in metrics if metric.higher]
    return compare_together(tables, pairs, level, MIN_SEEDS, higher=higher, allow_equal=True)
