"""sweep over seeds: the table that may compare the arms, because it has more than one training of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow.parquet as pq

from storage.errors import require_distinct
from storage.records import Rows
from tasks.attacks.effects import difference_over_seeds
from tasks.attacks.results import ATTACKS, PrimaryAnswer
from tasks.findings.publish import Published, publish_report
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.statistics.seeds import MeanOverSeeds, OverSeeds, mean_over_seeds
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.sweep.results import SweepResults
from tasks.findings.sweep.sweep import read_cells
from tasks.monotonic.arm import BASELINE, CONTROL, MONOTONIC
from tasks.robustness.final_results import FinalResults, RobustnessSweepResults
from tasks.robustness.sweep_report import clean_difference, report
from tasks.robustness.words import in_other_ways
from tasks.stage.run import StageInput, StageRun


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """Verifies every byte that it reads, and compares the arms over all seeds that are there."""
    results, document, texts = read_cells(run, config, studies)
    cells = {
        name: Cell(
            FinalResults.read_file(given.path / "final_results.json"),
            {attack: pq.read_table(given.path / f"{attack}.parquet").to_pylist() for attack in ATTACKS},
        )
        for name, given in zip(config.present, studies.values(), strict=True)
    }
    _require_distinct_seeds(cells)
    combined = _combined(config, list(cells.values()), results)
    document = report(combined, {name: cell.results for name, cell in cells.items()}, document)
    return publish_report(run, studies, combined, document, texts=texts)


@dataclass(frozen=True)
class Cell:
    """One training of every arm: its results, and the records of its attacks."""

    results: FinalResults
    records: dict[str, Rows]


def _combined(config: SweepConfig, cells: list[Cell], results: SweepResults) -> RobustnessSweepResults:
    """Means over the cells: each is one training of every arm."""
    level, found = config.confidence_level, [cell.results for cell in cells]
    arms = list(found[0].arms)
    others = [arm for arm in arms if arm != BASELINE]

    def means(value: Callable[[FinalResults, str], float | None], arms: list[str]) -> dict[str, MeanOverSeeds]:
        return _means_of_known({arm: [value(one, arm) for one in found] for arm in arms}, level)

    return RobustnessSweepResults(
        **{name: getattr(results, name) for name in SweepResults.model_fields},
        alive_share=means(lambda one, arm: one.arms[arm].alive_share, arms),
        loss_differences=means(clean_difference, others),
        increase_differences={
            attack: {arm: _increase(cells, attack, arm, BASELINE, level) for arm in others} for attack in ATTACKS
        },
        equal_loss_differences={attack: means(partial(_at_equal_loss, attack), others) for attack in ATTACKS},
        primary=_answer(cells, level),
        primary_in_other_ways=_in_other_ways(found, level),
    )


def _answer(cells: Sequence[Cell], level: float) -> PrimaryAnswer:
    """The primary comparison over the cells; not answered where in one of them it could not be.

    Only the increase itself is compared over cells: at equal clean loss each cell has a line of training of its own.
    """
    found = [cell.results.primary for cell in cells]
    asked = found[0].primary
    judged: dict[str, Any] = {"primary": asked, "documents": found[0].documents, "sources": found[0].sources}
    unanswered = [one.unanswered for one in found if one.unanswered]
    if asked.measure != "increase":
        unanswered += ["over cells the measure increase is compared; at equal clean loss see the report of each cell"]
    if unanswered:
        return PrimaryAnswer(**judged, difference=None, answer=None, from_placebos={}, unanswered=unanswered[0])

    def difference(reference: str, at: float = level, arm: str = MONOTONIC) -> OverSeeds:
        return _increase(cells, asked.attack, arm, reference, at)

    placebos = [arm for arm in found[0].from_placebos if all(arm in one.from_placebos for one in found)]
    return PrimaryAnswer(
        **judged,
        difference=difference(BASELINE),
        answer=answer(lambda at: difference(BASELINE, at), asked.margin_nats_per_token, level),
        unanswered=None,
        from_placebos={arm: difference(arm) for arm in placebos},
        control=difference(BASELINE, arm=CONTROL) if CONTROL in cells[0].results.arms else None,
    )


def _means_of_known(values: Mapping[str, Sequence[float | None]], level: float) -> dict[str, MeanOverSeeds]:
    """The means over the cells of what every cell knows."""
    known = {name: [value for value in of_cells if value is not None] for name, of_cells in values.items()}
    return {name: mean_over_seeds(known[name], level) for name in values if len(known[name]) == len(values[name])}


def _in_other_ways(found: Sequence[FinalResults], level: float) -> dict[str, Estimate]:
    """The primary difference by fewer attacks, and at equal clean loss, where every cell knows it; t over cells."""
    ways = [in_other_ways(one) for one in found]
    values = {way: [row.value if (row := one.get(way)) else None for one in ways] for way in ways[0]}
    means = _means_of_known(values, level)
    return {way: Estimate(value=mean.mean, interval=mean.interval) for way, mean in means.items()}


def _increase(cells: Sequence[Cell], attack: str, model: str, reference: str, level: float) -> OverSeeds:
    """Increase by the attack on `model` minus that on `reference`, over cells and sources."""
    rows = [cell.records[attack] for cell in cells]
    return difference_over_seeds(rows, model, reference, "increase_nats_per_token", level)


def _at_equal_loss(attack: str, cell: FinalResults, arm: str) -> float | None:
    """Increase by the attack, less that of the unconstrained model at the arm's clean loss; None: not known."""
    (row,) = [row for row in cell.attacks[attack].at_equal_loss if row.model == arm]
    return row.increase_nats_per_token.value if row.increase_nats_per_token else None


def _require_distinct_seeds(cells: Mapping[str, Cell]) -> None:
    """Two cells with equal weights are one training under two names."""
    digests = {
        f"{name}, {arm}": of_arm.weights_digest
        for name, cell in cells.items()
        for arm, of_arm in cell.results.arms.items()
    }
    advice = "One of the runs is a copy of the other: remove the copy and run that cell"
    require_distinct("every cell has weights of its own", digests, "equal weights_digest", advice)
