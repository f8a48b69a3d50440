"""The tables of one attack: what it did, beside its two controls; differences; equal clean loss; strength; transfer."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.effects import EffectDifferenceWithSuccess
from tasks.attacks.matched import MatchedDifference
from tasks.findings.numbers import NATS, RATE, SHARE, percent, rate_points, smallest, value_and_span
from tasks.findings.provenance import run_name
from tasks.findings.statistics.power import POWER
from tasks.findings.table import Table
from tasks.robustness.final_results import FinalResults, Findings, HotFlipFindings
from tasks.robustness.results import Restart, Transferred, Trigger
from tasks.robustness.words import label, pair


def attack_tables(name: str, results: FinalResults) -> list[Table]:
    """Everything that was measured of one attack, in the order in which it is read."""
    findings = results.attacks.by_name()[name]
    found = [
        _effect_table(name, results, findings),
        _control_table(name, results, findings),
        _difference_table(results, findings),
        _equal_loss_table(results, findings),
        _strength_table(name, results, findings),
    ]
    if isinstance(findings, HotFlipFindings):
        found.insert(2, _success_table(results, findings))
    return [*found, _transfer_table(name, results)]


def ids_of(found: Trigger | Restart) -> str:
    """The token ids of a trigger."""
    return " ".join(map(str, found.trigger_ids))


def run_of(results: FinalResults, stage: str) -> str:
    """The name of the run directory of a stage: the last cell of every row of its numbers."""
    return run_name(results.runs[stage])


def _effect_table(name: str, results: FinalResults, findings: Findings) -> Table:
    level = f"{next(iter(findings.effects.values())).confidence_level:.0%}"
    return Table(
        "The attack: clean loss of the whole texts in nats per token, its increase where nothing was written under "
        f"the strongest attack, also as a share of the clean loss; {level} intervals over sources. Attacked = clean + "
        "increase. "
        f"{FOUND_FOR[name]}",
        ["model", "clean", "attacked", "increase", "interval", "relative", "interval", "found for", "run"],
        [
            [
                label(results, model),
                f"{effect.clean_loss_nats_per_token:.4f}",
                f"{effect.attacked_loss_nats_per_token:.4f}",
                *value_and_span(effect.increase_nats_per_token, NATS),
                *value_and_span(effect.relative_increase, SHARE),
                _found_for(findings.attacked_by[model]),
                run_of(results, "transfer"),
            ]
            for model, effect in findings.effects.items()
        ],
    )


FOUND_FOR = {
    "uat": "Last, the model that the trigger was found for.",
    "hotflip": "Last, the model that the flips of most texts were found for, and how many.",
}


def _found_for(texts: Mapping[str, int]) -> str:
    """`texts`: model -> texts whose attack was found for it, most first."""
    model, count = next(iter(texts.items()))
    return model if len(texts) == 1 else f"{model}, {count} of {sum(texts.values())}"


def _control_table(name: str, results: FinalResults, findings: Findings) -> Table:
    return Table(
        "The search on each model alone beside two controls, in nats per token: random tokens, and blind search at "
        "the same counted cost; what the gradient adds to blind search (nothing: it misleads); and the rank "
        "correlation of the gradient's estimate with the exact effect among the candidates that were tried, which are "
        "those that it ranks highest.",
        ["model", "random", "blind", "search", "search - blind", "interval", "correlation", "run"],
        [
            [
                label(results, model),
                NATS(effect.control_increase_nats_per_token.value),
                NATS(effect.blind_increase_nats_per_token.value),
                NATS(effect.search_increase_nats_per_token.value),
                *value_and_span(effect.search_minus_blind_nats_per_token, NATS),
                _correlation(findings.rank_correlation[model]),
                run_of(results, f"{name}-{model}"),
            ]
            for model, effect in findings.effects.items()
        ],
    )


def _correlation(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def _difference_table(results: FinalResults, findings: Findings) -> Table:
    rates = isinstance(findings, HotFlipFindings)
    return Table(
        "Differences between models of the increase under the strongest attack, in nats per token"
        + (", and of the success rate in percentage points" if rates else "")
        + f"; paired by document, {sampled(findings)}, one seed. Last, the smallest true difference of the increase "
        f"that is shown with a chance of {percent(POWER)}.",
        ["difference", "increase", "interval", *(["success", "interval"] if rates else []), "could show", "run"],
        [
            [
                pair(results, row.model, row.reference),
                *value_and_span(row.increase_nats_per_token, NATS),
                *(
                    value_and_span(row.success_rate, rate_points)
                    if isinstance(row, EffectDifferenceWithSuccess)
                    else []
                ),
                smallest(row.increase_nats_per_token),
                run_of(results, "transfer"),
            ]
            for row in findings.differences
        ],
    )


def sampled(findings: Findings) -> str:
    """Of what the intervals of differences know."""
    if isinstance(findings, HotFlipFindings):
        return "sources resampled"
    if findings.attack.restarts < 2:
        return "sources resampled under one trigger, which says nothing about another: no p"
    return (
        f"mean over the {findings.attack.restarts} searches (restarts), by the strongest trigger of each on each "
        "model, and so not the difference of two rows above, which are under the strongest of all; intervals and p "
        "know of other searches and other sources (Student's t)"
    )


def _equal_loss_table(results: FinalResults, findings: Findings) -> Table:
    return Table(
        "At equal clean loss: what the attack adds to each arm, less what it adds to the unconstrained model at the "
        "same clean loss, read off the line between two moments of its training, in nats per token "
        f"({sampled(findings)}); last, with the search on each model alone. Where the two disagree, the difference is "
        "one between searches. Every loss that this is made from stands in the run's records.",
        ["arm", "clean", "increase", "between", "difference", "interval", "own search", "interval", "run"],
        [
            [
                label(results, row.model),
                f"{row.clean_loss_nats_per_token:.4f}",
                NATS(findings.effects[row.model].increase_nats_per_token.value),
                " and ".join(row.between) if row.covered else f"beyond {row.between[0]}",
                *_known(row),
                *_known(alone),
                run_of(results, "transfer"),
            ]
            for row, alone in zip(findings.at_equal_loss, findings.at_equal_loss_alone, strict=True)
        ],
    )


def _known(row: MatchedDifference) -> list[str]:
    return (
        ["not known", "-"] if row.increase_nats_per_token is None else value_and_span(row.increase_nats_per_token, NATS)
    )


def _strength_table(name: str, results: FinalResults, findings: Findings) -> Table:
    return Table(
        "Strength: the increase that the search on each model found with shares of its budget, in nats per token; a "
        "share is rounded up to whole steps of the search.",
        ["model", *(f"{share:.0%}" for share in BUDGET_SHARES), "run"],
        [
            [
                label(results, model),
                *(NATS(found.value) for found in effect.budget_increases),
                run_of(results, f"{name}-{model}"),
            ]
            for model, effect in findings.effects.items()
        ],
    )


def _success_table(results: FinalResults, findings: HotFlipFindings) -> Table:
    threshold = findings.attack.success_relative_increase
    return Table(
        f"Successes: texts whose loss per token the strongest attack raised by more than {threshold:.0%} of the clean "
        "loss that the model has on the whole text (its mean in the second column); excess is success - control, in "
        "percentage points.",
        ["model", "clean", "success", "interval", "control", "interval", "excess", "interval", "run"],
        [
            [
                label(results, model),
                f"{effect.clean_loss_nats_per_token:.4f}",
                *value_and_span(effect.success_rate, RATE),
                *value_and_span(effect.control_success_rate, RATE),
                *value_and_span(effect.success_rate_minus_control, rate_points),
                run_of(results, "transfer"),
            ]
            for model, effect in findings.effects.items()
        ],
    )


def _transfer_table(name: str, results: FinalResults) -> Table:
    """Rows: the model that the attack was found for; columns: the model that it was tried on."""
    matrix: Transferred = getattr(results.transfer, name)
    return Table(
        "Transfer: what a search found for one model (row) tried on another (column); increase in nats per token.",
        ["found for", "search", *(f"on {label(results, model)}" for model in matrix["gradient"]), "run"],
        [
            [label(results, found_for), search, *map(NATS, row.values()), run_of(results, "transfer")]
            for search, of_search in matrix.items()
            for found_for, row in of_search.items()
        ],
    )
