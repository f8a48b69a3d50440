"""The tables of a study whose arms were attacked. A row ends with the name of the run that its numbers came from."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tasks.attacks.answer import COULD_SHOW, Answered, compared_rows
from tasks.attacks.final_results import AttackResults
from tasks.attacks.results import Findings
from tasks.findings.document import Document
from tasks.findings.numbers import NATS, SHARE, p_value, smallest, span, value_and_span
from tasks.findings.table import Table
from tasks.monotonic.arm import ALIVE_SHARE, BASELINE, LEAST_RANK

LOSS = "{:.4f}".format
COMPARISON = ["difference", "value", "interval", "p", "could show"]


def dead_marked(document: Document, dead: Collection[str]) -> Document:
    """The document, where a model with dead layers is called so in bold wherever a table names it."""

    def marked(cell: object) -> object:
        if not isinstance(cell, str) or not (parts := [part for part in re.split(r", | - ", cell) if part in dead]):
            return cell
        which = f": {', '.join(parts)}" if " - " in cell else ""
        return f"**{cell} (dead{which})**"

    def whole(table: Table) -> Table:
        rows = [[*map(marked, row)] for row in table.rows]
        return replace(table, header=[str(marked(name)) for name in table.header], rows=rows)

    sections = [replace(section, tables=[*map(whole, section.tables)]) for section in document.sections]
    return replace(document, sections=sections)


def comparison_table(results: AttackResults, answered: Answered) -> Table:
    asked, run = results.primary.primary, results.run_of("transfer")
    how = "by exchanges within sources (of n sources never below 2 / 2^n)"
    if results.attacks[asked.attack].one_for_all:
        how = "of Student's t, over searches and sources"
    return Table(
        f"The primary comparison ({asked.attack}, increase), nats per token; margin "
        f"{asked.margin_nats_per_token:g}. Below it the same against every placebo whose layers live, and in other "
        f"ways. p {how}, for one comparison (adjusted: final_results.json); where there is none, nothing was tested, "
        f"and the interval stands for itself alone. Last, {COULD_SHOW}.",
        [*COMPARISON, "run"],
        [[*row, run] for row in compared_rows(answered)],
    )


def layer_table(results: AttackResults) -> Table:
    """Whether the constrained sublayers live, how far they moved, and whether each is a monotone function."""
    rows = []
    for name, arm in results.arms.items():
        ranks, moved, order = arm.sublayers.effective_rank.values(), arm.movement.constrained, results.order[name]
        alive = [NATS(arm.sublayers.rise_nats_per_token), f"{arm.alive_share:.1%}", f"{sum(ranks) / len(ranks):.1f}"]
        moves = [
            "-" if moved is None else f"{moved:.2%}",
            "-" if arm.movement_ratio is None else f"{arm.movement_ratio:.2f}",
            f"{arm.constraint.share_of_zeros:.0%}" if arm.constraint else "-",
        ]
        on_text = "-" if order.falls_on_text is None else f"{order.falls_on_text:.2%}"
        keeps = [order.verdict, f"{abs(order.worst_violation_found):.2g}", on_text]
        rows.append([name, arm.start or "base", arm.by, *alive, *moves, *keeps, results.run_of(name)])
    return Table(
        "What the constrained sublayers do on the validation split: what their replacement by their mean output adds "
        f"to the loss (nats per token), as a share of the baseline's (below {ALIVE_SHARE:.0%}: dead); effective rank "
        f"of their outputs, mean over layers (median below {LEAST_RANK}: dead); median relative movement of their "
        "weights in training, and that as a multiple of the baseline's; share of these weights that are 0. Monotone: "
        "every sublayer proved for all inputs, refuted by a verified pair of inputs, or unknown; the steepest fall of "
        "an output that was found, per unit of the rise of the inputs; outputs that fall when inputs of text rise.",
        [
            *("arm", "start", "kept by", "rise", "of baseline's", "rank", "moved", "x baseline", "zeros"),
            *("monotone", "steepest fall", "on text", "run"),
        ],
        rows,
    )


def effect_table(results: AttackResults, more: Mapping[str, Callable[[str, str], str]]) -> Table:
    """`more`: header -> what stands there of an attack and a model."""
    rows = []
    for attack, findings in results.attacks.items():
        for model, effect in findings.effects.items():
            increase = [*value_and_span(effect.increase_nats_per_token, NATS), SHARE(effect.relative_increase.value)]
            controls = (effect.control_increase_nats_per_token, effect.blind_increase_nats_per_token)
            cells = [*increase, *(NATS(control.value) for control in controls)]
            others = [cell(attack, model) for cell in more.values()]
            by = next(iter(findings.attacked_by[model]))
            clean = LOSS(effect.clean_loss_nats_per_token)
            rows.append([attack, model, clean, *cells, *others, by, results.run_of("transfer")])
    return Table(
        "The attacks: clean loss of the whole texts in nats per token, its increase where nothing was written under "
        "the strongest attack that any search found for any model, with its interval over sources, and as a share of "
        "the clean loss; beside it as many random tokens, and blind search on this model at the same counted cost. "
        "Last, the model that the trigger, or the flips of most texts, were found for.",
        ["attack", "model", "clean", "increase", "interval", "relative", "random", "blind", *more, "found for", "run"],
        rows,
    )


def difference_table(results: AttackResults) -> Table:
    rows = []
    for attack, findings in results.attacks.items():
        for row in findings.differences:
            increase, pair = row.increase_nats_per_token, (row.model, row.reference)
            tested = map(p_value, (increase.p_value, results.adjusted(f"{attack} increase", *pair)))
            cells = [*value_and_span(increase, NATS), *tested, smallest(increase)]
            rows.append([attack, " - ".join(pair), *cells, results.run_of("transfer")])
    known = "; ".join(f"under {attack} {_known_of(findings)}" for attack, findings in results.attacks.items())
    return Table(
        "Differences between models of the increase under the strongest attack, in nats per token, paired by document, "
        f"one seed. What intervals know of: {known}. p for one comparison, and adjusted for the "
        f"{len(results.secondary)} secondary comparisons together (Holm 1979); at the border an interval may disagree "
        f"with p. Last, {COULD_SHOW}.",
        ["attack", "difference", "increase", "interval", "p", "adjusted", "could show", "run"],
        rows,
    )


def _known_of(findings: Findings) -> str:
    if not findings.one_for_all:
        return "other sources, p by exchanges within these"
    if findings.searches < 2:
        return "other sources under one trigger, which says nothing about another: no p"
    return (
        f"other searches and sources (Student's t): the mean over the {findings.searches} restarts, by the strongest "
        "trigger of each on each model, and so not the difference of two rows above"
    )


def of_baseline(results: AttackResults) -> dict[str, Sequence[str]]:
    """Model -> its test loss less the baseline's: value, interval, p, and p adjusted; its own loss stands beside."""
    return {
        row.model: [
            NATS(row.difference_nats_per_token),
            span(row.interval_nats_per_token, NATS),
            *map(p_value, (row.p_value, results.adjusted("test loss", row.model, row.reference))),
        ]
        for row in results.differences
        if row.reference == BASELINE
    }
