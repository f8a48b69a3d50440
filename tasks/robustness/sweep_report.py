"""Report of a sweep over chance on the arms, before what every sweep shows of its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tasks.attacks.answer import Answered, answer_figure, numbers, told
from tasks.findings.document import Document, Figure, Section
from tasks.findings.figures import Dots, dots
from tasks.findings.numbers import NATS, estimate, span, value_and_span
from tasks.findings.statistics.seeds import MeanOverSeeds
from tasks.findings.table import Table
from tasks.monotonic.arm import ALIVE_SHARE, BASELINE, MONOTONIC, placebos
from tasks.robustness import tables, words
from tasks.robustness.final_results import FinalResults, RobustnessSweepResults

Cells = Mapping[str, FinalResults]
"""Name of each cell that is there -> what its study found."""
ONE_BASE = "All cells train from one base model: another one may answer otherwise (vary model.init_seed)."


def report(results: RobustnessSweepResults, cells: Cells, of_cells: Document) -> Document:
    """The answer over all cells, and what of each is a mean; `of_cells` is what every sweep says of its numbers."""
    first, given = next(iter(cells.values())), answered_over_cells(results, cells)
    attack, answer = results.primary.primary.attack, told(given)
    increases = [cell.attacks[attack].effects[BASELINE].increase_nats_per_token.value for cell in cells.values()]
    shares = {arm: mean.mean for arm, mean in results.alive_share.items()}
    sections = [
        Section(
            "The arms compared",
            points=[words.same_budget(first), *words.alive(shares), *words.models(first)],
            figures=[_differences_figure(results, cells)],
            tables=[*_primary_tables(given), *_mean_tables(results)],
        ),
        Section("The attacks", texts=[words.how_attacked(findings, first) for findings in first.attacks.values()]),
        *of_cells.sections,
    ]
    return replace(
        of_cells,
        title=f"{results.study}: the arms over {len(cells)} trainings of each",
        verdict=answer.verdict,
        lead=answer.lead,
        numbers=[*numbers(given), *_other_numbers(results)],
        answer=answer_figure(given),
        not_shown=[
            answer.not_shown,
            *words.dead_layers(shares),
            *_unconverged(cells),
            *words.could_be_seen(results.primary, sum(increases) / len(increases)),
            *([ONE_BASE] if given.one_training else []),
            *_cautions(cells),
            *of_cells.not_shown,
        ],
        question=f"{words.QUESTION} {words.model_and_text(first)}. {words.the_text(first)}",
        sections=tables.dead_marked(sections, {arm for arm, share in shares.items() if share < ALIVE_SHARE}),
    )


def answered_over_cells(results: RobustnessSweepResults, cells: Cells) -> Answered:
    """Basis of the answer; a way that a cell does not know lacks too, and so does a placebo that lives in some
    cells and not in all, which was not compared."""
    living = {arm for cell in cells.values() for arm in cell.arms if arm not in cell.dead_arms}
    by_increase = results.primary.primary.measure == "increase"
    compared = results.primary.from_placebos.keys()
    one_base = len({cell.provenance["base"].fingerprint for cell in cells.values()}) == 1
    return Answered(
        results.primary,
        {way: results.primary_in_other_ways.get(way) for way in words.in_other_ways(next(iter(cells.values())))},
        f"{len(cells)} trainings of each",
        "all of them train from one base model" if one_base else "",
        [arm for arm in placebos([*results.alive_share]) if by_increase and arm in living - compared],
        ", by Student's t over cells alone",
    )


def _other_numbers(results: RobustnessSweepResults) -> list[str]:
    """Cost of the constraint on clean text, and the same difference under the other attack."""
    clean = results.loss_differences[MONOTONIC]
    interval = span(clean.interval, NATS)
    return [
        f"test loss, monotonic - baseline: {NATS(clean.mean)} nats per token (interval {interval})",
        *(
            f"{name}, monotonic - baseline: {estimate(of_attack[MONOTONIC], NATS)} nats per token"
            for name, of_attack in results.increase_differences.items()
            if name != results.primary.primary.attack
        ),
    ]


def _unconverged(cells: Cells) -> list[str]:
    """In how many cells an attack has not converged."""
    found = []
    for name in next(iter(cells.values())).attacks:
        growing = [words.still_growing(cell.attacks[name]) for cell in cells.values()]
        if shares := [share for of_cell in growing for share in of_cell.values()]:
            found.append(
                f"**{name} has not converged in {sum(map(bool, growing))} of {len(growing)} cells:** the last "
                f"{words.LAST_PART} of its budget, the same for every model, still found up to {max(shares):.0%} of "
                f"what the search on a model found. {words.MORE_WOULD_BE_FOUND}"
            )
    return found


def _cautions(cells: Cells) -> list[str]:
    """Each once, with the cells that it is of, where it is not of all."""
    cells_of: dict[str, list[str]] = {}
    for name, result in cells.items():
        of_cell = [*words.worse_than_frequencies(result), *words.masked(result.attacks), *words.cautions(result)]
        for caution in of_cell:
            cells_of.setdefault(caution, []).append(name)
    return [
        caution if len(names) == len(cells) else f"{', '.join(names)}: {caution}" for caution, names in cells_of.items()
    ]


def _differences_figure(results: RobustnessSweepResults, cells: Cells) -> Figure:
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


def clean_difference(cell: FinalResults, arm: str) -> float:
    """The loss on the test split, arm - baseline."""
    return cell.models[arm].loss_nats_per_token - cell.models[BASELINE].loss_nats_per_token


def _primary_tables(given: Answered) -> list[Table]:
    """The comparison that answers, and those on which this answer rests; none without an answer."""
    if given.primary.difference is None:
        return []
    return [
        Table(
            f"What {given.primary.primary.attack} adds, in nats per token: the primary comparison, and the same "
            "against every placebo whose layers live in all cells. Interval and p of Student's t, over cells and "
            "sources together, each for one comparison; of what is counted otherwise over cells alone. Last, "
            f"{tables.COULD_SHOW}.",
            tables.COMPARISON,
            tables.comparison_rows(given),
        )
    ]


def _mean_tables(results: RobustnessSweepResults) -> list[Table]:
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
