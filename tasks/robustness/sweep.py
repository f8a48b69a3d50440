"""sweep over seeds: the answer over all cells, in the words of the study."""

from collections.abc import Mapping
from dataclasses import replace

from tasks.attacks.sweep import AttackSweepResults, sweep_attacks
from tasks.findings.document import Document, Section
from tasks.findings.publish import Published
from tasks.findings.sweep.configuration import SweepConfig
from tasks.monotonic.arm import ALIVE_SHARE, BASELINE
from tasks.robustness import words
from tasks.robustness.final_results import FinalResults
from tasks.robustness.tables import dead_marked
from tasks.stage.run import StageInput, StageRun

Cells = Mapping[str, FinalResults]
"""Name of each cell that is there -> what its study found."""


def sweep_seeds(run: StageRun, config: SweepConfig, **studies: StageInput) -> Published:
    """Verifies every byte that it reads, and compares the arms over all seeds that are there."""
    return sweep_attacks(run, config, studies, FinalResults, _in_words)


def _in_words(results: AttackSweepResults, cells: Cells, document: Document) -> Document:
    """The report with what the study says of its models, its attacks and its text."""
    first, attack = next(iter(cells.values())), results.primary.primary.attack
    increases = [cell.attacks[attack].effects[BASELINE].increase_nats_per_token.value for cell in cells.values()]
    shares = {arm: mean.mean for arm, mean in results.alive_share.items()}
    compared, *others = document.sections
    not_shown, *more = document.not_shown
    points = [words.same_budget(first), *words.alive(shares), *words.models(first)]
    how = [words.how_attacked(findings, first) for findings in first.attacks.values()]
    sections = [replace(compared, points=points), Section("The attacks", texts=how), *others]
    return replace(
        document,
        not_shown=[
            not_shown,
            *words.dead_layers(shares),
            *_unconverged(cells),
            *words.could_be_seen(results.primary, sum(increases) / len(increases)),
            *_cautions(cells),
            *more,
        ],
        question=f"{words.QUESTION} {words.model_and_text(first)}. {words.the_text(first)}",
        sections=dead_marked(sections, {arm for arm, share in shares.items() if share < ALIVE_SHARE}),
    )


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
    """Each caution once; names its cells unless all have it."""
    cells_of: dict[str, list[str]] = {}
    for name, result in cells.items():
        of_cell = [*words.worse_than_frequencies(result), *words.masked(result.attacks), *words.cautions(result)]
        for caution in of_cell:
            cells_of.setdefault(caution, []).append(name)
    return [
        caution if len(names) == len(cells) else f"{', '.join(names)}: {caution}" for caution, names in cells_of.items()
    ]
