"""What a sweep over chance shows of the arms, before what every sweep shows of its cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tasks.findings.document import Document, Figure, Section
from tasks.findings.figures import Dots, dots
from tasks.findings.numbers import NATS, estimate, p_value, percent, smallest, span, value_and_span
from tasks.findings.statistics.power import POWER
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.table import Table
from tasks.robustness.answer import Answered, not_shown, numbers, seen, verdict
from tasks.robustness.arm import ALIVE_SHARE, BASELINE, CONTROL, MONOTONIC, placebos
from tasks.robustness.attack_words import LAST_PART, MORE_WOULD_BE_FOUND, how_attacked, masked, still_growing
from tasks.robustness.final_results import FinalResults, RobustnessSweepResults
from tasks.robustness.report import answer_figure
from tasks.robustness.words import (
    QUESTION,
    alive,
    cautions,
    could_be_seen,
    dead_layers,
    in_other_ways,
    model_and_text,
    models,
    the_text,
    worse_than_frequencies,
)

Cells = Mapping[str, FinalResults]
"""Name of each cell that is there -> what its study found."""


def report(results: RobustnessSweepResults, cells: Cells, of_cells: Document) -> Document:
    """The answer over all cells, and what of each is a mean; `of_cells` is what every sweep says of its numbers."""
    first, given = next(iter(cells.values())), answered_over_cells(results, cells)
    attack = results.primary.primary.attack
    increases = [
        cell.attacks.by_name()[attack].effects[BASELINE].increase_nats_per_token.value for cell in cells.values()
    ]
    shares = {arm: mean.mean for arm, mean in results.alive_share.items()}
    figure = _differences_figure(results, cells)
    return replace(
        of_cells,
        title=f"{results.study}: the arms over {len(cells)} trainings of each",
        verdict=verdict(given),
        lead=seen(given),
        numbers=[one for one in (numbers(given), *_other_numbers(results)) if one],
        answer=answer_figure(given),
        not_shown=[
            not_shown(given),
            *dead_layers(shares),
            *_unconverged(cells),
            *could_be_seen(results.primary, sum(increases) / len(increases)),
            *([ONE_BASE] if _has_one_base(cells) else []),
            *(caution for caution in _cautions(cells) if "**" in caution),
            *of_cells.not_shown,
        ],
        question=f"{QUESTION} {model_and_text(first)}. {the_text(first)}",
        sections=[
            Section(
                "The arms compared",
                points=[*alive(shares), *models(first)],
                figures=[figure],
                tables=[*_primary_tables(results), _mean_table(results), _equal_loss_table(results)],
            ),
            Section("The attacks", texts=[how_attacked(name, first) for name in first.attacks.by_name()]),
            *(_with_dead_marked(section, shares) for section in of_cells.sections),
            Section("Cautions", points=_cautions(cells)),
        ],
    )


def _with_dead_marked(section: Section, shares: Mapping[str, float]) -> Section:
    """The section of a metric, where a dead arm is called so in every table, as in all other tables."""
    dead = {arm for arm, share in shares.items() if share < ALIVE_SHARE}

    def marked(cell: object) -> object:
        return f"**{cell} (dead)**" if isinstance(cell, str) and dead & {*cell.split(", ")} else cell

    def whole(table: Table) -> Table:
        header = [str(marked(cell)) for cell in table.header]
        return replace(table, header=header, rows=[[*map(marked, row)] for row in table.rows])

    return replace(section, tables=[*map(whole, section.tables)])


def _other_numbers(results: RobustnessSweepResults) -> list[str]:
    """What the constraint costs on clean text, and the same difference under the other attack."""
    found = []
    if clean := results.loss_differences.get(MONOTONIC):
        interval = span(clean.interval, NATS)
        found.append(f"test loss, monotonic - baseline: {NATS(clean.mean)} nats per token (interval {interval})")
    for name, of_attack in results.increase_differences.items():
        if name != results.primary.primary.attack and MONOTONIC in of_attack:
            found.append(f"{name}, monotonic - baseline: {estimate(of_attack[MONOTONIC], NATS)} nats per token")
    return found


def _unconverged(cells: Cells) -> list[str]:
    """In how many cells an attack has not converged."""
    found = []
    for name in next(iter(cells.values())).attacks.by_name():
        growing = [still_growing(cell.attacks.by_name()[name]) for cell in cells.values()]
        shares = [share for of_cell in growing for share in of_cell.values()]
        if shares:
            found.append(
                f"**{name} has not converged in {sum(map(bool, growing))} of {len(growing)} cells:** the last "
                f"{LAST_PART} of its budget, the same for every model, still found up to {max(shares):.0%} of what the "
                f"search on a model found. {MORE_WOULD_BE_FOUND}"
            )
    return found


def answered_over_cells(results: RobustnessSweepResults, cells: Cells) -> Answered:
    """What the two sentences are made from."""
    one_base = "all of them train from one base model" if _has_one_base(cells) else ""
    known = results.primary_in_other_ways
    ways = {
        way: known.get(way) for way in in_other_ways(next(iter(cells.values())))
    }  # one that a cell does not know lacks too
    return Answered(
        results.primary,
        ways,
        f"{len(cells)} trainings of each",
        one_base,
        not_compared=_living_in_some(results, cells),
        of_ways=", by Student's t over cells alone",
    )


def _living_in_some(results: RobustnessSweepResults, cells: Cells) -> list[str]:
    """Placebos that live in some cells and not in all, and so were not compared."""
    if results.primary.primary.measure != "increase":
        return []
    living = {arm for cell in cells.values() for arm, share in cell.alive_shares.items() if share >= ALIVE_SHARE}
    return [arm for arm in placebos([*results.alive_share]) if arm in living - results.primary.from_placebos.keys()]


def _has_one_base(cells: Cells) -> bool:
    return len({cell.provenance["base"].fingerprint for cell in cells.values()}) == 1


ONE_BASE = "All cells train from one base model: another one may answer otherwise (vary model.init_seed)."


def _differences_figure(results: RobustnessSweepResults, cells: Cells) -> Figure:
    """Every arm minus baseline of every cell, on clean text and under each attack."""
    rows = [
        Dots(f"clean, {arm}", [clean_difference(cell, arm) for cell in cells.values()], mean.mean, mean.interval)
        for arm, mean in results.loss_differences.items()
    ]
    for attack, means in results.increase_differences.items():
        rows += [Dots(f"{attack}, {arm}", over.of_seeds, over.value, over.interval) for arm, over in means.items()]
    said = "; ".join(f"{row.label}: {', '.join(map(NATS, row.values))}" for row in rows)
    caption = (
        "Every arm - baseline: one dot for each cell, and their mean with its interval. Loss on clean text, and its "
        "increase under each attack."
    )
    return dots("differences", caption, said, rows, "difference (nats per token)")


def _cautions(cells: Cells) -> list[str]:
    """Each once, with the cells that it is of, where it is not of all."""
    cells_of: dict[str, list[str]] = {}
    for name, result in cells.items():
        for caution in [*worse_than_frequencies(result), *masked(result), *cautions(result)]:
            cells_of.setdefault(caution, []).append(name)
    return [
        caution if len(names) == len(cells) else f"{', '.join(names)}: {caution}" for caution, names in cells_of.items()
    ]


def _label(results: RobustnessSweepResults, arm: str) -> str:
    """The name of an arm in a table, in bold where its constrained layers are dead in the mean."""
    return f"**{arm} (dead)**" if results.alive_share[arm].mean < ALIVE_SHARE else arm


def _primary_tables(results: RobustnessSweepResults) -> list[Table]:
    """The comparison that answers, and those on which it rests that this is an answer; none without an answer."""
    found = results.primary
    if found.difference is None:
        return []
    same = f"{MONOTONIC} - {BASELINE}"
    rows: dict[str, Estimate] = {same: found.difference}
    rows |= {f"{same}, {way}": row for way, row in results.primary_in_other_ways.items()}
    rows |= {f"{MONOTONIC} - {placebo}": row for placebo, row in found.from_placebos.items()}
    if found.control is not None:
        rows[f"{CONTROL} - {BASELINE}, the positive control"] = found.control
    return [
        Table(
            f"What {found.primary.attack} adds, in nats per token: the primary comparison, and the same against every "
            "placebo whose layers live in all cells. Interval and p of Student's t, over cells and sources together, "
            "each for one comparison; of what is counted otherwise over cells alone. Last, the smallest difference "
            f"that is shown with a chance of {percent(POWER)}.",
            ["difference", "value", "interval", "p", "could show"],
            [[name, *value_and_span(row, NATS), p_value(row.p_value), smallest(row)] for name, row in rows.items()],
        )
    ]


def _mean_table(results: RobustnessSweepResults) -> Table:
    attacks = results.increase_differences
    return Table(
        "Arm - baseline, means over the cells in nats per token: of the clean loss (Student's t over cells), and of "
        "what each attack adds (over cells and sources together).",
        ["arm", "clean", "interval", *(cell for name in attacks for cell in (name, "interval"))],
        [
            [
                _label(results, arm),
                NATS(clean.mean),
                span(clean.interval, NATS),
                *(cell for of_arm in attacks.values() for cell in value_and_span(of_arm[arm], NATS)),
            ]
            for arm, clean in results.loss_differences.items()
        ],
    )


def _equal_loss_table(results: RobustnessSweepResults) -> Table:
    def cells_of(arm: str) -> list[str]:
        means = [of_attack.get(arm) for of_attack in results.equal_loss_differences.values()]
        return [
            cell
            for mean in means
            for cell in ([NATS(mean.mean), span(mean.interval, NATS)] if mean else ["not known", "-"])
        ]

    return Table(
        "At equal clean loss: what each attack adds to an arm, less what it adds to the unconstrained model at the "
        "same clean loss, in nats per token; means over the cells, Student's t. Not known where the arm of a cell is "
        "better, or worse, than every kept moment of that training.",
        ["arm", "uat", "interval", "hotflip", "interval"],
        [[_label(results, arm), *cells_of(arm)] for arm in results.loss_differences],
    )


def clean_difference(cell: FinalResults, arm: str) -> float:
    """Of the loss on the test split, arm - baseline."""
    return cell.models[arm].loss_nats_per_token - cell.models[BASELINE].loss_nats_per_token
