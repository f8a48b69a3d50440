"""What an attack did: losses before and after, absolute and relative, beside a random control.

A record is a dictionary with `model`, `example_id`, `source`; `tokens_scored`, `loss_sum_nats` (attacked) and
`clean_loss_sum_nats` on the same tokens; the same three with `control_` in front, summed over the control's draws;
`text_tokens` and `text_clean_loss_sum_nats` of the whole text, which no attacker chooses.
Where an attack on one text can succeed, also `success` and `control_successes` (of the control's draws).

A relative increase divides by the model's own clean loss, so the same nats are a smaller share for a model that
predicts badly to begin with. Every effect is therefore given in nats per token too, with the clean loss beside it.
The clean loss is always that of the whole texts: an attack that replaces tokens decides which are still scored, and
with them it would choose its own denominator, another one for each model and for the control.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

from tasks.stage.result import Result
from tasks.statistics.rates import rate, rate_difference
from tasks.statistics.resampling import Estimate, interval, sums_by_source

LOSSES = (
    "tokens_scored",
    "loss_sum_nats",
    "clean_loss_sum_nats",
    "control_tokens_scored",
    "control_loss_sum_nats",
    "control_clean_loss_sum_nats",
)
TEXT = ("text_tokens", "text_clean_loss_sum_nats")
SUCCESSES = ("documents", "success", "control_successes")


class Effect(Result):
    """What an attack did to one model, beside its random control; losses in nats per token, weighted by tokens.

    `attacked_loss` and `control_loss` are the clean loss of the whole texts plus the increase of the tokens that were
    scored. The interval of an estimate is None when all documents are of one source.
    """

    model: str
    documents: int
    sources: int
    tokens_scored: int
    clean_loss_nats_per_token: float
    attacked_loss_nats_per_token: float
    increase_nats_per_token: Estimate
    relative_increase: Estimate
    control_tokens_scored: int
    control_loss_nats_per_token: float
    control_increase_nats_per_token: Estimate
    control_relative_increase: Estimate
    attack_minus_control_nats_per_token: Estimate
    confidence_level: float


class EffectWithSuccess(Effect):
    """The effect of an attack that succeeds or fails on each text; rates of documents."""

    success_rate: Estimate
    control_success_rate: Estimate
    success_rate_minus_control: Estimate


class EffectDifference(Result):
    """The effect on `model` minus that on `reference`, on the same documents."""

    model: str
    reference: str
    documents: int
    sources: int
    increase_nats_per_token: Estimate
    relative_increase: Estimate
    attack_minus_control_nats_per_token: Estimate
    confidence_level: float


class EffectDifferenceWithSuccess(EffectDifference):
    """The same of an attack that succeeds or fails on each text."""

    success_rate: Estimate


def increase(tokens: Any, attacked: Any, clean: Any) -> Any:
    """Increase of the loss in nats per token, of token-weighted means."""
    return (attacked - clean) / tokens


def relative_increase(tokens: Any, attacked: Any, clean: Any, text_tokens: Any, text_clean: Any) -> Any:
    """Increase of the loss per token as a share of the whole texts' clean loss per token."""
    return increase(tokens, attacked, clean) / (text_clean / text_tokens)


@overload
def attack_effect(
    rows: list[dict[str, Any]], model: str, resamples: int, confidence_level: float, control_draws: None = None
) -> Effect: ...


@overload
def attack_effect(
    rows: list[dict[str, Any]], model: str, resamples: int, confidence_level: float, control_draws: int
) -> EffectWithSuccess: ...


def attack_effect(
    rows: list[dict[str, Any]], model: str, resamples: int, confidence_level: float, control_draws: int | None = None
) -> Effect:
    """The effect of an attack on one model, with whole sources resampled.

    With `control_draws` (how many control attacks there were on each text) also the success rates. Raises ValueError
    for a model without records, and for a record in which nothing was scored.
    """
    chosen = _chosen(rows, model)
    sums = _sums(chosen, control_draws is not None)
    total = {column: float(values.sum()) for column, values in sums.items()}

    def estimate(statistic: Callable[..., Any], *columns: str) -> Estimate:
        return _estimate(statistic, [sums[column] for column in columns], resamples, confidence_level)

    attack, control = LOSSES[:3], LOSSES[3:]
    clean = total["text_clean_loss_sum_nats"] / total["text_tokens"]
    risen, risen_at_random = estimate(increase, *attack), estimate(increase, *control)
    effect = Effect(
        model=model,
        documents=len(chosen),
        sources=len(sums["tokens_scored"]),
        tokens_scored=int(total["tokens_scored"]),
        clean_loss_nats_per_token=clean,
        attacked_loss_nats_per_token=clean + risen.value,
        increase_nats_per_token=risen,
        relative_increase=estimate(relative_increase, *attack, *TEXT),
        control_tokens_scored=int(total["control_tokens_scored"]),
        control_loss_nats_per_token=clean + risen_at_random.value,
        control_increase_nats_per_token=risen_at_random,
        control_relative_increase=estimate(relative_increase, *control, *TEXT),
        attack_minus_control_nats_per_token=estimate(_minus(increase, 3), *LOSSES),
        confidence_level=confidence_level,
    )
    if control_draws is None:
        return effect
    hits, random = sums["success"], sums["control_successes"] / control_draws
    settings = (sums["documents"], resamples, confidence_level)
    return EffectWithSuccess(
        **dict(effect),
        success_rate=rate(hits, *settings),
        control_success_rate=rate(random, *settings),
        success_rate_minus_control=rate_difference(hits, random, *settings),
    )


@overload
def paired_effects(
    rows: list[dict[str, Any]],
    model: str,
    reference: str,
    resamples: int,
    confidence_level: float,
    control_draws: None = None,
) -> EffectDifference: ...


@overload
def paired_effects(
    rows: list[dict[str, Any]],
    model: str,
    reference: str,
    resamples: int,
    confidence_level: float,
    control_draws: int,
) -> EffectDifferenceWithSuccess: ...


def paired_effects(
    rows: list[dict[str, Any]],
    model: str,
    reference: str,
    resamples: int,
    confidence_level: float,
    control_draws: int | None = None,
) -> EffectDifference:
    """The effect on `model` minus that on `reference`, each estimate with its interval over sources.

    Both must have been attacked on the same documents, else ValueError: a text that failed in one of them only
    would make them incomparable. Each model's own tokens count (an attack chooses for each model what to replace).
    """
    ours, theirs = _chosen(rows, model), _chosen(rows, reference)
    if _identities(ours) != _identities(theirs):
        raise ValueError(f"{model} and {reference} were not attacked on the same documents")
    with_success = control_draws is not None
    a, b = _sums(ours, with_success), _sums(theirs, with_success)

    def estimate(statistic: Callable[..., Any], *columns: str) -> Estimate:
        both = [sums[column] for sums in (a, b) for column in columns]
        return _estimate(_minus(statistic, len(columns)), both, resamples, confidence_level)

    difference = EffectDifference(
        model=model,
        reference=reference,
        documents=len(ours),
        sources=len(a["tokens_scored"]),
        increase_nats_per_token=estimate(increase, *LOSSES[:3]),
        relative_increase=estimate(relative_increase, *LOSSES[:3], *TEXT),
        attack_minus_control_nats_per_token=estimate(_minus(increase, 3), *LOSSES),
        confidence_level=confidence_level,
    )
    if control_draws is None:
        return difference
    rates = rate_difference(a["success"], b["success"], a["documents"], resamples, confidence_level)
    return EffectDifferenceWithSuccess(**dict(difference), success_rate=rates)


def succeeded(row: dict[str, Any], relative_threshold: float) -> bool:
    """Whether an attack raised the loss per scored token by more than this share of the whole text's clean loss."""
    risen = increase(row["tokens_scored"], row["loss_sum_nats"], row["clean_loss_sum_nats"])
    return risen > relative_threshold * row["text_clean_loss_sum_nats"] / row["text_tokens"]


def _minus(statistic: Callable[..., Any], columns: int) -> Callable[..., Any]:
    """The statistic of the first `columns` totals minus that of the others."""
    return lambda *totals: statistic(*totals[:columns]) - statistic(*totals[columns:])


def _estimate(
    statistic: Callable[..., Any], columns: Sequence[np.ndarray], resamples: int, confidence_level: float
) -> Estimate:
    value = float(statistic(*(column.sum() for column in columns)))
    return Estimate(value=value, interval=interval(statistic, columns, resamples, confidence_level))


def _sums(chosen: list[dict[str, Any]], with_success: bool) -> dict[str, np.ndarray]:
    counted = [row | {"documents": 1} for row in chosen]
    return sums_by_source(counted, LOSSES + TEXT + (SUCCESSES if with_success else ()))


def _chosen(rows: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    chosen = [row for row in rows if row["model"] == model]
    if not chosen:
        raise ValueError(f"{model} was attacked on no document")
    for row in chosen:
        if row["tokens_scored"] < 1 or row["control_tokens_scored"] < 1:
            raise ValueError(f"nothing was scored of document {row['example_id']} for {model}")
    return chosen


def _identities(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((row["example_id"], row["source"]) for row in rows)
