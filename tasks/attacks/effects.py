"""Effects of attacks: losses before and after, absolute and relative, beside random tokens and blind search.

A record is a dictionary with `model`, `example_id`, `source`; `tokens_scored`, `loss_sum_nats` (attacked, by whichever
attack) and `clean_loss_sum_nats`; on the same tokens `budget_losses_sum_nats` (of the gradient search on this model at
shares of its cost, the last of all of it), `blind_loss_sum_nats` (blind search at equal cost) and
`control_losses_sum_nats` (of each random draw); `text_tokens` and `text_clean_loss_sum_nats` of the whole text, of
which no attacker chooses a part.

A relative increase divides by the model's own clean loss, so the same nats are a smaller share for a model that
predicts badly to begin with. Every effect is therefore given in nats per token too, with the clean loss beside it.
The clean loss is always that of the whole texts: an attack that replaces tokens takes them out of the score, and with
them it would choose its own denominator.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from storage.records import Rows
from tasks.findings.statistics.permutation import exchange_p_value
from tasks.findings.statistics.rates import rate, rate_difference
from tasks.findings.statistics.resampling import Estimate, Statistic, estimate, sums_by_source
from tasks.findings.statistics.seeds import OverSeeds, over_seeds
from tasks.stage.result import Result

Total = TypeVar("Total", float, np.ndarray)


class Effect(Result):
    """Effect of an attack on one model, beside its controls; losses in nats per token, weighted by tokens.

    `control` is the mean of the random draws, `search` the gradient search on this model, `blind` a blind search of
    equal cost; `budget_increases`, in nats per token, are those of `search` at shares of its cost. Success rates are of
    documents, where an attack succeeds or fails on each.
    """

    model: str
    documents: int
    sources: int
    clean_loss_nats_per_token: float
    increase_nats_per_token: Estimate
    relative_increase: Estimate
    control_increase_nats_per_token: Estimate
    attack_minus_control_nats_per_token: Estimate
    search_increase_nats_per_token: Estimate
    blind_increase_nats_per_token: Estimate
    search_minus_blind_nats_per_token: Estimate
    budget_increases: list[Estimate]
    success_rate: Estimate | None = None
    control_success_rate: Estimate | None = None


class EffectDifference(Result):
    """The effect on `model` minus that on `reference`, on the same tokens of the same documents.

    With its interval and the p-value of the two models exchanged; over several searches it is the mean over these.
    """

    model: str
    reference: str
    increase_nats_per_token: OverSeeds | Estimate
    success_rate: Estimate | None = None


def increase(tokens: Total, attacked: Total, clean: Total) -> Total:
    """Increase of the loss in nats per token, of token-weighted means."""
    return (attacked - clean) / tokens


def relative_increase(tokens: Total, attacked: Total, clean: Total, text_tokens: Total, text_clean: Total) -> Total:
    """Increase of the loss per token as a share of the whole texts' clean loss per token."""
    return increase(tokens, attacked, clean) / (text_clean / text_tokens)


INCREASE = ("tokens_scored", "loss", "clean")
"""Columns of `effect_sums` whose totals `increase` takes."""
MEASURES: dict[str, tuple[Statistic, tuple[str, ...]]] = {
    "increase_nats_per_token": (increase, INCREASE),
    "relative_increase": (relative_increase, (*INCREASE, "text_tokens", "text_clean")),
    "attack_minus_control_nats_per_token": (increase, ("tokens_scored", "loss", "control")),
    "control_increase_nats_per_token": (increase, ("tokens_scored", "control", "clean")),
    "search_increase_nats_per_token": (increase, ("tokens_scored", "search", "clean")),
    "blind_increase_nats_per_token": (increase, ("tokens_scored", "blind", "clean")),
    "search_minus_blind_nats_per_token": (increase, ("tokens_scored", "search", "blind")),
}
"""Field of Effect -> statistic of the totals of these columns of `effect_sums`."""


def attack_effect(
    rows: Rows, model: str, resamples: int, confidence_level: float, success_threshold: float | None = None
) -> Effect:
    """The effect of an attack on one model, with whole sources resampled.

    With `success_threshold` (relative, see `succeeded`) also the success rates, computed from the losses. Raises
    ValueError for a model without records.
    """
    chosen = records_of(rows, model)
    sums = effect_sums(chosen, success_threshold=success_threshold)
    total = {column: float(values.sum()) for column, values in sums.items()}

    def estimated(statistic: Statistic, columns: Sequence[str]) -> Estimate:
        return estimate(statistic, [sums[column] for column in columns], resamples, confidence_level)

    estimates = {name: estimated(*measure) for name, measure in MEASURES.items()}
    budgets = [column for column in sums if column.startswith("budget ")]
    rates = {}
    if success_threshold is not None:
        hits, random, documents = sums["success"], sums["control_success"], sums["documents"]
        rates = {
            "success_rate": rate(hits, documents, confidence_level),
            "control_success_rate": rate(random, documents, confidence_level),
        }
    return Effect(
        model=model,
        documents=len(chosen),
        sources=len(sums["tokens_scored"]),
        clean_loss_nats_per_token=total["text_clean"] / total["text_tokens"],
        budget_increases=[estimated(increase, ("tokens_scored", budget, "clean")) for budget in budgets],
        **estimates,
        **rates,
    )


def paired_effects(
    searches: Sequence[Rows],
    model: str,
    reference: str,
    resamples: int,
    confidence_level: float,
    success_threshold: float | None = None,
) -> EffectDifference:
    """The effect on `model` minus that on `reference`, with its interval and p-value.

    `searches` are the records of each search. What one search found says nothing about another's: a difference under
    one trigger holds for this trigger, however many texts are read. So where an attack is one for all texts it is the
    mean over searches, a unit beside sources and crossed with them, as each is judged on the same texts: see
    `over_seeds`. For one search it is over sources, which `success_threshold` makes a sample of searches too: each text
    is attacked by itself. Else there is no p-value: none would say that another search finds the same. Raises
    ValueError, with the document's name, unless both were scored on the same tokens of the same documents.
    """
    ours, theirs = records_of(searches[0], model), records_of(searches[0], reference)
    require_same_tokens(ours, theirs)
    a, b = (effect_sums(chosen, success_threshold=success_threshold) for chosen in (ours, theirs))

    def difference() -> Estimate:
        if len(searches) > 1:
            return difference_over_seeds(searches, model, reference, confidence_level)
        mine, other = ([sums[column] for column in INCREASE] for sums in (a, b))
        result = estimate(minus(increase, len(INCREASE)), [*mine, *other], resamples, confidence_level)
        if result.interval is None or success_threshold is None:
            return result
        return result.model_copy(update={"p_value": exchange_p_value(increase, mine, other)})

    rate_of_successes = None
    if success_threshold is not None:
        rate_of_successes = rate_difference(a["success"], b["success"], a["documents"], confidence_level)
    return EffectDifference(
        model=model,
        reference=reference,
        increase_nats_per_token=difference(),
        success_rate=rate_of_successes,
    )


def difference_over_seeds(
    rows_of_seeds: Sequence[Rows], model: str, reference: str, confidence_level: float
) -> OverSeeds:
    """The increase on `model` minus that on `reference`, mean over seeds; see `over_seeds`.

    `rows_of_seeds` are the records of each seed; both models of a seed must have been scored on the same tokens.
    """
    pairs = [(records_of(rows, model), records_of(rows, reference)) for rows in rows_of_seeds]
    for ours, theirs in pairs:
        require_same_tokens(ours, theirs)
    sources = sorted({row["source"] for ours, _ in pairs for row in ours})
    columns = [
        [sums[name] for sums in (effect_sums(ours, sources), effect_sums(theirs, sources)) for name in INCREASE]
        for ours, theirs in pairs
    ]
    return over_seeds(minus(increase, len(INCREASE)), columns, confidence_level)


def succeeded(row: dict[str, Any], relative_threshold: float, loss_sum_nats: float | None = None) -> bool:
    """True where an attack raised the loss per scored token by more than this share of the whole text's clean loss.

    Judges the record's attacked loss, or another on the same tokens, such as one of a random draw.
    """
    attacked = row["loss_sum_nats"] if loss_sum_nats is None else loss_sum_nats
    risen = increase(row["tokens_scored"], attacked, row["clean_loss_sum_nats"])
    return risen > relative_threshold * row["text_clean_loss_sum_nats"] / row["text_tokens"]


def control_successes(row: dict[str, Any], relative_threshold: float) -> int:
    """How many of the random draws succeeded."""
    return sum(succeeded(row, relative_threshold, loss) for loss in row["control_losses_sum_nats"])


def minus(statistic: Statistic, columns: int) -> Statistic:
    """The statistic of the first `columns` totals minus that of the others."""
    return lambda *totals: statistic(*totals[:columns]) - statistic(*totals[columns:])


def records_of(rows: Rows, model: str) -> Rows:
    """The records of one model; ValueError where there is none."""
    if not (chosen := [row for row in rows if row["model"] == model]):
        raise ValueError(f"{model} was attacked on no document")
    return chosen


def require_same_tokens(ours: Rows, theirs: Rows) -> None:
    """ValueError, with the document's name, where two models were not scored on the same tokens of the same texts."""
    identity = ("example_id", "source", "text_tokens", "tokens_scored")
    a, b = (Counter(tuple(row[column] for column in identity) for row in rows) for rows in (ours, theirs))
    if unequal := sorted((a - b) + (b - a)):
        raise ValueError(
            f"{ours[0]['model']} and {theirs[0]['model']} were not attacked on the same tokens of document "
            f"{unequal[0][0]}"
        )


def effect_sums(
    chosen: Rows, sources: Sequence[str] | None = None, success_threshold: float | None = None
) -> dict[str, np.ndarray]:
    """The columns of MEASURES, and `budget 0`, `budget 1`, ..., summed by source, float64 [sources].

    With `success_threshold` also `success` and `control_success`, the share of the draws that succeeded.
    """
    counted = [_columns(row, success_threshold) for row in chosen]
    names = [name for name in counted[0] if name not in ("example_id", "source")]
    return sums_by_source(counted, names, sources)


def _columns(row: dict[str, Any], success_threshold: float | None) -> dict[str, Any]:
    draws = row["control_losses_sum_nats"]
    columns = {
        "example_id": row["example_id"],
        "source": row["source"],
        "documents": 1,
        "tokens_scored": row["tokens_scored"],
        "text_tokens": row["text_tokens"],
        "text_clean": row["text_clean_loss_sum_nats"],
        "clean": row["clean_loss_sum_nats"],
        "loss": row["loss_sum_nats"],
        "control": sum(draws) / len(draws),
        "search": row["budget_losses_sum_nats"][-1],
        "blind": row["blind_loss_sum_nats"],
    }
    columns |= {f"budget {number}": loss for number, loss in enumerate(row["budget_losses_sum_nats"])}
    if success_threshold is not None:
        columns["success"] = float(succeeded(row, success_threshold))
        columns["control_success"] = control_successes(row, success_threshold) / len(draws)
    return columns
