"""sweep of a study of attacks over chance: each cell is one training of every arm, so that the arms may be compared.

Differences of what an attack adds are over cells and sources of texts together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.parquet as pq

from storage.errors import require_distinct
from storage.records import Rows
from tasks.attacks.answer import COULD_SHOW, Answered, answer_figure, compared_rows, in_other_ways, numbers, told
from tasks.attacks.cautions import could_be_seen, of_cells, of_control
from tasks.attacks.effects import difference_over_seeds
from tasks.attacks.final_results import AttackResults
from tasks.attacks.results import ATTACKS, PrimaryAnswer
from tasks.attacks.swept import INCREASE, PAIRS
from tasks.attacks.views import COMPARISON, dead_marked
from tasks.findings.document import Document, Section
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.statistics.seeds import OverSeeds, mean_over_seeds
from tasks.findings.sweep.configuration import SweepConfig
from tasks.findings.sweep.results import SweepResults
from tasks.findings.sweep.sweep import read_cells
from tasks.findings.table import Table
from tasks.monotonic.arm import ALIVE_SHARE, BASELINE, CONTROL, MONOTONIC, placebos
from tasks.stage.run import StageInput, StageRun

ONE_BASE = "All cells train from one base model: another one may answer otherwise (vary model.init_seed)."


@dataclass(frozen=True)
class Cell:
    """One training of every arm: its results, and the records of its attacks."""

    results: AttackResults
    records: dict[str, Rows]


class AttackSweepResults(SweepResults):
    """sweep over seeds: the answer, beside what every sweep has.

    `primary_in_other_ways`: the primary difference by fewer attacks, and at equal clean loss, mean over the cells where
    every one knows it.
    """

    primary: PrimaryAnswer
    primary_in_other_ways: dict[str, Estimate]


def sweep_attacks(
    run: StageRun, config: SweepConfig, studies: dict[str, StageInput], kind: type[AttackResults]
) -> Published:
    """Verifies every byte that it reads, and compares the arms over all seeds; `kind` is what each cell found."""
    require_verified(studies)
    cells = {
        name: Cell(
            kind.read_file(stage.path / "final_results.json"),
            {attack: pq.read_table(stage.path / f"{attack}.parquet").to_pylist() for attack in ATTACKS},
        )
        for name, stage in zip(config.present, studies.values(), strict=True)
    }
    level, results_of_cells = config.confidence_level, {name: cell.results for name, cell in cells.items()}
    first = next(iter(results_of_cells.values()))
    known = {
        INCREASE.format(attack=attack): {
            (arm, reference): _increase([*cells.values()], attack, arm, reference, level)
            for arm, reference in PAIRS
            if {arm, reference} <= first.attacks[attack].effects.keys()
        }
        for attack in ATTACKS
    }
    results, document, texts = read_cells(run, config, studies, known)
    _require_distinct_seeds(results_of_cells)
    combined = AttackSweepResults(
        **{name: getattr(results, name) for name in SweepResults.model_fields},
        primary=_answer([*cells.values()], level),
        primary_in_other_ways=_in_other_ways([*results_of_cells.values()], level),
    )
    return publish_report(run, studies, combined, _document(combined, results_of_cells, document), texts=texts)


def _answer(cells: Sequence[Cell], level: float) -> PrimaryAnswer:
    """The primary comparison over the cells; not answered where in one of them it could not be."""
    answers = [cell.results.primary for cell in cells]
    asked = answers[0].primary
    judged: dict[str, Any] = {"primary": asked, "documents": answers[0].documents, "sources": answers[0].sources}
    unanswered = [each.unanswered for each in answers if each.unanswered]
    if unanswered:
        return PrimaryAnswer(**judged, difference=None, answer=None, from_placebos={}, unanswered=unanswered[0])

    def difference(reference: str, at: float = level, arm: str = MONOTONIC) -> OverSeeds:
        return _increase(cells, asked.attack, arm, reference, at)

    known = [arm for arm in answers[0].from_placebos if all(arm in each.from_placebos for each in answers)]
    return PrimaryAnswer(
        **judged,
        difference=difference(BASELINE),
        answer=answer(lambda at: difference(BASELINE, at), asked.margin_nats_per_token, level),
        unanswered=None,
        from_placebos={arm: difference(arm) for arm in known},
        control=difference(BASELINE, arm=CONTROL) if CONTROL in cells[0].results.arms else None,
    )


def _in_other_ways(answers: Sequence[AttackResults], level: float) -> dict[str, Estimate]:
    """The primary difference in every other way that each cell knows; t over cells."""
    ways = [in_other_ways(results.primary, results.attacks) for results in answers]
    known = {way: [row.value for row in (of_cell.get(way) for of_cell in ways) if row] for way in ways[0]}
    means = {way: mean_over_seeds(values, level) for way, values in known.items() if len(values) == len(answers)}
    return {way: Estimate(value=mean, interval=interval) for way, (mean, _, interval) in means.items()}


def _increase(cells: Sequence[Cell], attack: str, model: str, reference: str, level: float) -> OverSeeds:
    """Increase by the attack on `model` minus that on `reference`, over cells and sources."""
    rows = [cell.records[attack] for cell in cells]
    return difference_over_seeds(rows, model, reference, level)


def _require_distinct_seeds(cells: Mapping[str, AttackResults]) -> None:
    """Two cells with equal weights are one training under two names."""
    digests = {
        f"{name}, {arm}": facts.weights_digest for name, cell in cells.items() for arm, facts in cell.arms.items()
    }
    advice = "One of the runs is a copy of the other: remove the copy and run that cell"
    require_distinct("every cell has weights of its own", digests, "equal weights_digest", advice)


def _document(results: AttackSweepResults, cells: Mapping[str, AttackResults], document: Document) -> Document:
    """The answer over all cells, before what every sweep says of its numbers."""
    answered = answered_over_cells(results, cells)
    told_of, arms = told(answered), next(iter(cells.values())).arms
    shares = {arm: sum(cell.arms[arm].alive_share for cell in cells.values()) / len(cells) for arm in arms}
    added = sum(cell.added for cell in cells.values()) / len(cells)
    document = replace(
        document,
        title=f"{results.study}: the arms over {len(cells)} trainings of each",
        verdict=told_of.verdict,
        lead=told_of.lead,
        numbers=[*numbers(answered), *document.numbers][:3],
        answer=answer_figure(answered),
        not_shown=[
            told_of.not_shown,
            *([ONE_BASE] if answered.one_training else []),
            *of_cells(cells),
            *could_be_seen(results.primary, added),
            *([of_control(results.primary)] if results.primary.control else []),
            *document.not_shown,
        ],
        sections=[Section("The arms compared", tables=_primary_tables(answered)), *document.sections],
    )
    return dead_marked(document, {arm for arm, share in shares.items() if share < ALIVE_SHARE})


def answered_over_cells(results: AttackSweepResults, cells: Mapping[str, AttackResults]) -> Answered:
    """Basis of the answer; a way that a cell does not know lacks too, and so does a placebo that lives in some
    cells and not in all, which was not compared."""
    living = {arm for cell in cells.values() for arm, facts in cell.arms.items() if not facts.dead}
    compared = results.primary.from_placebos.keys()
    one_base = len({cell.provenance["base"].fingerprint for cell in cells.values()}) == 1
    first = next(iter(cells.values()))
    return Answered(
        results.primary,
        {way: results.primary_in_other_ways.get(way) for way in in_other_ways(first.primary, first.attacks)},
        f"{len(cells)} trainings of each",
        "all of them train from one base model" if one_base else "",
        [arm for arm in placebos([*first.arms]) if arm in living - compared],
        ", by Student's t over cells alone",
    )


def _primary_tables(answered: Answered) -> list[Table]:
    """The comparison that answers, and those on which this answer rests; none without an answer."""
    if answered.primary.difference is None:
        return []
    caption = (
        f"What {answered.primary.primary.attack} adds, in nats per token: the primary comparison, and the same against "
        "every placebo whose layers live in all cells. Interval and p of Student's t, over cells and sources together, "
        f"each for one comparison; of what is counted otherwise over cells alone. Last, {COULD_SHOW}."
    )
    return [Table(caption, COMPARISON, compared_rows(answered))]
