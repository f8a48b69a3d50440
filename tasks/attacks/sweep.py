"""sweep of a study of attacks over chance: each cell is one training of every arm, so that the arms may be compared.

Differences of what an attack adds are over cells and sources of texts together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow.parquet as pq

from storage.errors import require_distinct
from storage.records import Rows
from tasks.attacks.answer import (
    COMPARISON,
    COULD_SHOW,
    Answered,
    answer_figure,
    comparison_rows,
    in_other_ways,
    numbers,
    told,
)
from tasks.attacks.effects import difference_over_seeds
from tasks.attacks.results import ATTACKS, PrimaryAnswer
from tasks.attacks.swept import INCREASE, PAIRS
from tasks.findings.document import Document, Figure, Section
from tasks.findings.figures import Dots, dots
from tasks.findings.numbers import NATS, estimate, span, value_and_span
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.statistics.seeds import MeanOverSeeds, OverSeeds, mean_over_seeds
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.sweep.results import SweepResults
from tasks.findings.sweep.sweep import read_cells
from tasks.findings.table import Table
from tasks.monotonic.arm import BASELINE, CONTROL, MONOTONIC, placebos
from tasks.stage.run import StageInput, StageRun

ONE_BASE = "All cells train from one base model: another one may answer otherwise (vary model.init_seed)."


@dataclass(frozen=True)
class Cell:
    """One training of every arm: its results, and the records of its attacks."""

    results: Any
    records: dict[str, Rows]


class AttackSweepResults(SweepResults):
    """sweep over seeds: the arms compared, beside what every sweep has.

    Differences are those of an arm (key) from baseline, mean over seeds; `equal_loss_differences` from the
    unconstrained model at the arm's clean loss; `primary_in_other_ways` by fewer attacks, and at equal clean loss. What
    a cell does not know is missing there.
    """

    alive_share: dict[str, MeanOverSeeds]
    loss_differences: dict[str, MeanOverSeeds]
    increase_differences: dict[str, dict[str, OverSeeds]]
    equal_loss_differences: dict[str, dict[str, MeanOverSeeds]]
    primary: PrimaryAnswer
    primary_in_other_ways: dict[str, Estimate]


Words = Callable[[AttackSweepResults, Mapping[str, Any], Document], Document]


def sweep_attacks(
    run: StageRun, config: SweepConfig, studies: dict[str, StageInput], kind: type[Any], words: Words | None = None
) -> Published:
    """Verifies every byte that it reads, and compares the arms over all seeds that are there.

    `kind`: of what the cells found; `words`: what a study says beside the answer.
    """
    require_verified(studies)
    cells = {
        name: Cell(
            kind.read_file(given.path / "final_results.json"),
            {attack: pq.read_table(given.path / f"{attack}.parquet").to_pylist() for attack in ATTACKS},
        )
        for name, given in zip(config.present, studies.values(), strict=True)
    }
    level, found = config.confidence_level, [cell.results for cell in cells.values()]
    known = {
        attack: {
            (arm, reference): _increase([*cells.values()], attack, arm, reference, level)
            for arm, reference in PAIRS
            if {arm, reference} <= found[0].attacks[attack].effects.keys()
        }
        for attack in ATTACKS
    }
    sources = {INCREASE.format(attack=attack): pairs for attack, pairs in known.items()}
    results, document, texts = read_cells(run, config, studies, sources)
    _require_distinct_seeds(cells)
    others = [arm for arm in found[0].arms if arm != BASELINE]
    combined = AttackSweepResults(
        **{name: getattr(results, name) for name in SweepResults.model_fields},
        alive_share=_means(found, lambda one, arm: one.arms[arm].alive_share, [*found[0].arms], level),
        loss_differences=_means(found, clean_difference, others, level),
        increase_differences={attack: {arm: pairs[arm, BASELINE] for arm in others} for attack, pairs in known.items()},
        equal_loss_differences={
            attack: _means(found, partial(_at_equal_loss, attack), others, level) for attack in ATTACKS
        },
        primary=_answer([*cells.values()], level),
        primary_in_other_ways=_in_other_ways(found, level),
    )
    of_cells = {name: cell.results for name, cell in cells.items()}
    document = _document(combined, of_cells, document)
    document = words(combined, of_cells, document) if words else document
    return publish_report(run, studies, combined, document, texts=texts)


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

    known = [arm for arm in found[0].from_placebos if all(arm in one.from_placebos for one in found)]
    return PrimaryAnswer(
        **judged,
        difference=difference(BASELINE),
        answer=answer(lambda at: difference(BASELINE, at), asked.margin_nats_per_token, level),
        unanswered=None,
        from_placebos={arm: difference(arm) for arm in known},
        control=difference(BASELINE, arm=CONTROL) if CONTROL in cells[0].results.arms else None,
    )


def _means(
    found: Sequence[Any], value: Callable[[Any, str], float | None], names: Sequence[str], level: float
) -> dict[str, MeanOverSeeds]:
    """The means over the cells of what every cell knows."""
    known = {name: [number for one in found if (number := value(one, name)) is not None] for name in names}
    return {name: mean_over_seeds(numbers, level) for name, numbers in known.items() if len(numbers) == len(found)}


def _in_other_ways(found: Sequence[Any], level: float) -> dict[str, Estimate]:
    """The primary difference by fewer attacks, and at equal clean loss, where every cell knows it; t over cells."""

    def value(one: Any, way: str) -> float | None:
        row = in_other_ways(one.primary, one.attacks).get(way)
        return row.value if row else None

    means = _means(found, value, [*in_other_ways(found[0].primary, found[0].attacks)], level)
    return {way: Estimate(value=mean.mean, interval=mean.interval) for way, mean in means.items()}


def _increase(cells: Sequence[Cell], attack: str, model: str, reference: str, level: float) -> OverSeeds:
    """Increase by the attack on `model` minus that on `reference`, over cells and sources."""
    rows = [cell.records[attack] for cell in cells]
    return difference_over_seeds(rows, model, reference, "increase_nats_per_token", level)


def _at_equal_loss(attack: str, cell: Any, arm: str) -> float | None:
    """Increase by the attack, less that of the unconstrained model at the arm's clean loss; None: not known."""
    (row,) = [row for row in cell.attacks[attack].at_equal_loss if row.model == arm]
    return row.increase_nats_per_token.value if row.increase_nats_per_token else None


def clean_difference(cell: Any, arm: str) -> float:
    """The loss on the test split, arm - baseline."""
    return float(cell.models[arm].loss_nats_per_token - cell.models[BASELINE].loss_nats_per_token)


def _require_distinct_seeds(cells: Mapping[str, Cell]) -> None:
    """Two cells with equal weights are one training under two names."""
    digests = {
        f"{name}, {arm}": of_arm.weights_digest
        for name, cell in cells.items()
        for arm, of_arm in cell.results.arms.items()
    }
    advice = "One of the runs is a copy of the other: remove the copy and run that cell"
    require_distinct("every cell has weights of its own", digests, "equal weights_digest", advice)


# ------------------------------------------------------------------------------------------------ the document


def _document(results: AttackSweepResults, cells: Mapping[str, Any], of_cells: Document) -> Document:
    """The answer over all cells, before what every sweep says of its numbers."""
    given = answered_over_cells(results, cells)
    answer = told(given)
    figure = _differences_figure(results, cells)
    compared = Section("The arms compared", figures=[figure], tables=[*_primary_tables(given), *_mean_tables(results)])
    return replace(
        of_cells,
        title=f"{results.study}: the arms over {len(cells)} trainings of each",
        verdict=answer.verdict,
        lead=answer.lead,
        numbers=[*numbers(given), *_other_numbers(results)],
        answer=answer_figure(given),
        not_shown=[answer.not_shown, *([ONE_BASE] if given.one_training else []), *of_cells.not_shown],
        sections=[compared, *of_cells.sections],
    )


def answered_over_cells(results: AttackSweepResults, cells: Mapping[str, Any]) -> Answered:
    """Basis of the answer; a way that a cell does not know lacks too, and so does a placebo that lives in some
    cells and not in all, which was not compared."""
    living = {arm for cell in cells.values() for arm, facts in cell.arms.items() if not facts.dead}
    by_increase = results.primary.primary.measure == "increase"
    compared = results.primary.from_placebos.keys()
    one_base = len({cell.provenance["base"].fingerprint for cell in cells.values()}) == 1
    first = next(iter(cells.values()))
    return Answered(
        results.primary,
        {way: results.primary_in_other_ways.get(way) for way in in_other_ways(first.primary, first.attacks)},
        f"{len(cells)} trainings of each",
        "all of them train from one base model" if one_base else "",
        [arm for arm in placebos([*results.alive_share]) if by_increase and arm in living - compared],
        ", by Student's t over cells alone",
    )


def _other_numbers(results: AttackSweepResults) -> list[str]:
    """Cost of the constraint on clean text, and the same difference under the other attack."""
    clean = results.loss_differences[MONOTONIC]
    return [
        f"test loss, monotonic - baseline: {NATS(clean.mean)} nats per token (interval {span(clean.interval, NATS)})",
        *(
            f"{name}, monotonic - baseline: {estimate(of_attack[MONOTONIC], NATS)} nats per token"
            for name, of_attack in results.increase_differences.items()
            if name != results.primary.primary.attack
        ),
    ]


def _differences_figure(results: AttackSweepResults, cells: Mapping[str, Any]) -> Figure:
    """Every arm minus baseline of every cell, on clean text and under each attack."""
    rows = [
        Dots(f"clean, {arm}", [clean_difference(cell, arm) for cell in cells.values()], mean.mean, mean.interval)
        for arm, mean in results.loss_differences.items()
    ]
    for attack, means in results.increase_differences.items():
        rows += [Dots(f"{attack}, {arm}", over.of_seeds, over.value, over.interval) for arm, over in means.items()]
    values = "; ".join(f"{row.label}: {', '.join(map(NATS, row.values))}" for row in rows)
    caption = (
        "Every arm - baseline: one dot for each cell, and their mean with its interval. Loss on clean text, and its "
        "increase under each attack."
    )
    return dots("differences", caption, values, rows, "difference (nats per token)")


def _primary_tables(given: Answered) -> list[Table]:
    """The comparison that answers, and those on which this answer rests; none without an answer."""
    if given.primary.difference is None:
        return []
    caption = (
        f"What {given.primary.primary.attack} adds, in nats per token: the primary comparison, and the same against "
        "every placebo whose layers live in all cells. Interval and p of Student's t, over cells and sources together, "
        f"each for one comparison; of what is counted otherwise over cells alone. Last, {COULD_SHOW}."
    )
    return [Table(caption, COMPARISON, comparison_rows(given))]


def _mean_tables(results: AttackSweepResults) -> list[Table]:
    """Arm - baseline as it is, and at equal clean loss."""
    means, equal = results.increase_differences, results.equal_loss_differences
    header = [cell for name in means for cell in (name, "interval")]
    rows, at_equal_loss = [], []
    for arm, clean in results.loss_differences.items():
        added = [cell for of_arm in means.values() for cell in value_and_span(of_arm[arm], NATS)]
        rows.append([arm, *_mean(clean), *added])
        at_equal_loss.append([arm, *(cell for of_arm in equal.values() for cell in _mean(of_arm.get(arm)))])
    return [
        Table(
            "Arm - baseline, means over the cells in nats per token: of the clean loss (Student's t over cells), and "
            "of what each attack adds (over cells and sources together).",
            ["arm", "clean", "interval", *header],
            rows,
        ),
        Table(
            "At equal clean loss: what each attack adds to an arm, less what it adds to the unconstrained model at the "
            "same clean loss, in nats per token; means over the cells, Student's t. Not known where the arm of a cell "
            "is better, or worse, than every kept moment of that training.",
            ["arm", *header],
            at_equal_loss,
        ),
    ]


def _mean(of: MeanOverSeeds | None) -> list[str]:
    return ["not known", "-"] if of is None else [NATS(of.mean), span(of.interval, NATS)]
