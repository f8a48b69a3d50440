"""What a sweep over seeds shows: means over its cells, and each cell by itself."""

from __future__ import annotations

from tasks.report.figures import Dots, dots
from tasks.report.numbers import NATS, RATE, estimate, p_value, percent, perplexity, smallest, span, value_and_span
from tasks.report.page import Figure, Section, html_page
from tasks.report.provenance import beside, run_name
from tasks.report.table import Table
from tasks.robustness.answer import Answered, two_sentences
from tasks.robustness.arm import ALIVE_SHARE, BASE, BASELINE, CONTROL, MONOTONIC, placebos
from tasks.robustness.attack_words import LAST_PART, MORE_WOULD_BE_FOUND, how_attacked, still_growing
from tasks.robustness.final_results import FinalResults, SweepResults
from tasks.robustness.words import (
    MEASURES,
    QUESTION,
    alive,
    cautions,
    claim,
    could_be_seen,
    in_other_ways,
    label,
    model_and_text,
    models,
    the_text,
    verdict,
    ways_in_words,
)
from tasks.statistics.effects import EffectWithSuccess
from tasks.statistics.power import POWER


def table(results: SweepResults) -> str:
    """The answer, what each arm costs and what attacks add to it, means over the cells, and each cell by itself."""
    blocks = [
        f"# {_title(results)}",
        *_missing(results),
        _what_was_studied(results),
        *_first_lines(results),
        "\n".join(f"- {line}" for line in [*_alive(results), *_answer_in_words(results)]),
        *(table.markdown() for table in _primary_tables(results)),
        _mean_table(results).markdown(),
        _equal_loss_table(results).markdown(),
        "\n".join(f"- {line}" for line in models(_first(results))),
        _cell_table(results).markdown(),
        _rate_table(results).markdown(),
        *_how_attacked(results),
        _attack_table(results).markdown(),
        "\n\n".join(_cautions(results)),
        Table(
            "Run directories, below the root of all runs.",
            ["cell", "run directory"],
            [[name, directory] for name, directory in zip(results.cells, results.runs.values(), strict=True)],
        ).markdown(),
    ]
    return "\n\n".join(blocks) + "\n"


def report(results: SweepResults, drawn: Figure, origins: Section) -> str:
    """The same as one HTML page, with a dot for each cell."""
    sections = [
        Section(
            "The arms compared",
            points=models(_first(results)),
            figures=[drawn],
            tables=[*_primary_tables(results), _mean_table(results), _equal_loss_table(results)],
        ),
        Section(
            "Every cell",
            texts=_how_attacked(results),
            tables=[_cell_table(results), _rate_table(results), _attack_table(results)],
        ),
        Section("Cautions", points=_cautions(results)),
        origins,
    ]
    facts = [*_missing(results), *_alive(results), *_answer_in_words(results)]
    return html_page(
        _title(results),
        _what_was_studied(results),
        facts,
        sections,
        answer=_first_lines(results),
        beside=beside(["table.md", "figures/"]),
    )


def _first_lines(results: SweepResults) -> list[str]:
    """What is read before all else: the answer, and in how many cells an attack has not converged."""
    found = two_sentences(answered_over_cells(results))
    for name in _first(results).attacks.by_name():
        growing = [still_growing(cell.attacks.by_name()[name]) for cell in results.of_cell.values()]
        shares = [share for of_cell in growing for share in of_cell.values()]
        if shares:
            found.append(
                f"**{name} has not converged in {sum(map(bool, growing))} of {len(growing)} cells:** the last "
                f"{LAST_PART} of its budget, the same for every model, still found up to {max(shares):.0%} of what the "
                f"search on a model found. {MORE_WOULD_BE_FOUND}"
            )
    return found


def answered_over_cells(results: SweepResults) -> Answered:
    """What the two sentences are made from."""
    one_base = "all of them train from one base model" if _has_one_base(results) else ""
    known = results.primary_in_other_ways
    ways = {way: known.get(way) for way in in_other_ways(_first(results))}  # one that a cell does not know lacks too
    return Answered(
        results.primary,
        ways,
        f"{len(results.cells)} trainings of each",
        one_base,
        not_compared=_living_in_some(results),
        of_ways=", by Student's t over cells alone",
    )


def _living_in_some(results: SweepResults) -> list[str]:
    """Placebos that live in some cells and not in all, and so were not compared."""
    if results.primary.primary.measure != "increase":
        return []
    cells = list(results.of_cell.values())
    return [
        arm
        for arm in placebos(list(_first(results).arms))
        if arm not in results.primary.from_placebos and any(cell.arms[arm].alive_share >= ALIVE_SHARE for cell in cells)
    ]


def _has_one_base(results: SweepResults) -> bool:
    return len({cell.provenance["base"].fingerprint for cell in results.of_cell.values()}) == 1


def _answer_in_words(results: SweepResults) -> list[str]:
    found, asked = results.primary, results.primary.primary
    measured = f"The primary comparison ({asked.attack}: {MEASURES[asked.measure]}), monotonic - baseline"
    increases = [
        cell.attacks.by_name()[asked.attack].effects[BASELINE].increase_nats_per_token.value
        for cell in results.of_cell.values()
    ]
    seen = could_be_seen(found, sum(increases) / len(increases))
    if found.difference is None or found.answer is None:
        return [f"**{measured}, is not answered:** {found.unanswered}.", *seen]
    said = (
        f"**{measured}: {estimate(found.difference, NATS)} nats per token over {len(results.cells)} cells: "
        f"{verdict(found.answer)}.**"
    )
    one_base = [ONE_BASE] if _has_one_base(results) else []
    p = found.difference.p_value
    tested = f" p {p_value(p)} is of Student's t, over cells and sources together." if p is not None else ""
    given = answered_over_cells(results)
    return [f"{said}{tested}", claim(given), ways_in_words(given), *seen, *one_base]


ONE_BASE = "All cells train from one base model: another one may answer otherwise (vary model.init_seed)."


def differences_figure(results: SweepResults) -> Figure:
    """Every arm minus baseline of every cell, on clean text and under each attack."""
    cells = list(results.of_cell.values())
    rows = [
        Dots(f"clean, {arm}", [clean_difference(cell, arm) for cell in cells], mean.mean, mean.interval)
        for arm, mean in results.loss_differences.items()
    ]
    for attack, means in results.increase_differences.items():
        rows += [Dots(f"{attack}, {arm}", over.of_seeds, over.value, over.interval) for arm, over in means.items()]
    numbers = "; ".join(f"{row.label}: {', '.join(map(NATS, row.values))}" for row in rows)
    caption = (
        "Every arm - baseline: one dot for each cell, and their mean with its interval. Loss on clean text, and its "
        "increase under each attack."
    )
    return Figure(dots("differences", f"{caption} {numbers}.", rows, "difference (nats per token)"), caption)


def _title(results: SweepResults) -> str:
    return f"{results.study}: the arms over {len(results.cells)} trainings of each"


def _missing(results: SweepResults) -> list[str]:
    return [f"Missing, because a stage of theirs stopped: {', '.join(results.missing)}."] if results.missing else []


def _cautions(results: SweepResults) -> list[str]:
    """Each once, with the cells that it is of, where it is not of all."""
    cells_of: dict[str, list[str]] = {}
    for name, result in zip(results.cells, results.of_cell.values(), strict=True):
        for caution in cautions(result):
            cells_of.setdefault(caution, []).append(name)
    return [
        caution if len(cells) == len(results.cells) else f"{', '.join(cells)}: {caution}"
        for caution, cells in cells_of.items()
    ]


def _first(results: SweepResults) -> FinalResults:
    """One of the cells: text, arms and attacks are the same for all."""
    return next(iter(results.of_cell.values()))


def _what_was_studied(results: SweepResults) -> str:
    """Model and text, the same for all cells."""
    first = _first(results)
    return f"{QUESTION} {model_and_text(first)}. {the_text(first)}"


def _how_attacked(results: SweepResults) -> list[str]:
    first = _first(results)
    return [how_attacked(name, first) for name in first.attacks.by_name()]


def _alive(results: SweepResults) -> list[str]:
    return alive({arm: mean.mean for arm, mean in results.alive_share.items()})


def _label(results: SweepResults, arm: str) -> str:
    """The name of an arm in a table, in bold where its constrained layers are dead in the mean."""
    return f"**{arm} (dead)**" if results.alive_share[arm].mean < ALIVE_SHARE else arm


def _primary_tables(results: SweepResults) -> list[Table]:
    """The comparison that answers, and those on which it rests that this is an answer; none without an answer."""
    found = results.primary
    if found.difference is None:
        return []
    rows = {f"{MONOTONIC} - {BASELINE}": found.difference}
    rows |= {f"{MONOTONIC} - {placebo}": row for placebo, row in found.from_placebos.items()}
    if found.control is not None:
        rows[f"{CONTROL} - {BASELINE}, the positive control"] = found.control
    return [
        Table(
            f"What {found.primary.attack} adds, in nats per token: the primary comparison, and the same against every "
            "placebo whose layers live in all cells. Interval and p of Student's t, over cells and sources together, "
            "each for one comparison. Last, the smallest true difference that is shown with a chance of "
            f"{percent(POWER)}.",
            ["difference", "value", "interval", "p", "could show"],
            [[name, *value_and_span(row, NATS), p_value(row.p_value), smallest(row)] for name, row in rows.items()],
        )
    ]


def _mean_table(results: SweepResults) -> Table:
    level = results.loss_nats_per_token[BASELINE].confidence_level

    def cells_of(arm: str) -> list[str]:
        if arm == BASELINE:
            return ["-"] * 6
        clean = results.loss_differences[arm]
        increases = [means[arm] for means in results.increase_differences.values()]
        found = [NATS(clean.mean), span(clean.interval, NATS)]
        return found + [cell for over in increases for cell in value_and_span(over, NATS)]

    def moved(arm: str) -> str:
        return f"{results.movement_ratio[arm].mean:.2f}" if arm in results.movement_ratio else "-"

    return Table(
        "Means over the cells: share of the baseline's rise that the constrained layers are good for; how far their "
        "weights moved, as a multiple of the baseline's; then arm - baseline in nats per token, of the clean loss and "
        f"of what each attack adds, with {level:.0%} intervals (Student's t over cells; of the attacks, over cells and "
        "sources together).",
        ["arm", "alive", "moved", "clean", "interval", "uat", "interval", "hotflip", "interval"],
        [
            [_label(results, arm), f"{mean.mean:.1%}", moved(arm), *cells_of(arm)]
            for arm, mean in results.alive_share.items()
        ],
    )


def _equal_loss_table(results: SweepResults) -> Table:
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


def _cell_table(results: SweepResults) -> Table:
    arms = list(_first(results).arms)
    return Table(
        "Test perplexity in each cell, and monotonic - baseline in nats per token.",
        ["cell", BASE, *(_label(results, arm) for arm in arms), "monotonic - baseline", "run"],
        [
            [
                name,
                *(perplexity(result.models[model].perplexity) for model in (BASE, *arms)),
                NATS(clean_difference(result, MONOTONIC)),
                run_name(results.runs[role]),
            ]
            for name, (role, result) in zip(results.cells, results.of_cell.items(), strict=True)
        ]
        + [[name, *["missing"] * (len(arms) + 2), "-"] for name in results.missing],
    )


def _rate_table(results: SweepResults) -> Table:
    return Table(
        "Peak learning rate of each arm, and the step of its best validation of how many; where rates were tried, the "
        "one with the best validation.",
        ["arm", *results.cells],
        [
            [
                _label(results, arm),
                *(
                    f"{cell.arms[arm].budget['learning_rate']:g}, {cell.arms[arm].best_step:,}/{cell.arms[arm].steps:,}"
                    for cell in results.of_cell.values()
                ),
            ]
            for arm in _first(results).arms
        ],
    )


def _attack_table(results: SweepResults) -> Table:
    """What each attack adds in each cell, beside both controls, with the clean losses."""
    return Table(
        "Increase of the loss under attack in nats per token, each arm and cell; beside it the controls: random "
        "tokens, and blind search on the arm at equal cost; hotflip's success rate.",
        ["cell", "attack", "arm", "clean", "increase", "random", "blind", "success", "run"],
        [
            [
                cell,
                name,
                label(result, arm),
                f"{effect.clean_loss_nats_per_token:.4f}",
                NATS(effect.increase_nats_per_token.value),
                NATS(effect.control_increase_nats_per_token.value),
                NATS(effect.blind_increase_nats_per_token.value),
                RATE(effect.success_rate.value) if isinstance(effect, EffectWithSuccess) else "-",
                run_name(results.runs[role]),
            ]
            for cell, (role, result) in zip(results.cells, results.of_cell.items(), strict=True)
            for name, findings in result.attacks.by_name().items()
            for arm, effect in findings.effects.items()
            if arm in result.arms
        ],
    )


def clean_difference(cell: FinalResults, arm: str) -> float:
    """Of the loss on the test split, arm - baseline."""
    return cell.models[arm].loss_nats_per_token - cell.models[BASELINE].loss_nats_per_token
