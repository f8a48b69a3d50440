"""Losses over records: means weighted by tokens, and paired differences with intervals.

A record is a dictionary with `model`, `example_id`, `source`, `tokens_scored` and `loss_sum_nats`.
"""

import math
from collections.abc import Mapping

import numpy as np

from storage.errors import require_limit
from storage.records import Rows
from tasks.findings.statistics.permutation import exchange_p_value
from tasks.findings.statistics.resampling import interval, sums_by_source
from tasks.language.configuration import BaseChecks
from tasks.language.result import TrainedCheck
from tasks.stage.result import Result


class ModelLoss(Result):
    """The loss of one model, weighted by tokens, in nats per token."""

    documents: int
    tokens_scored: int
    loss_nats_per_token: float
    perplexity: float


class LossDifference(Result):
    """The loss of `model` minus that of `reference` in nats per token, with its interval [low, high] over sources.

    `p_value` is two-sided, of the two models exchanged within sources.
    """

    model: str
    reference: str
    difference_nats_per_token: float
    interval_nats_per_token: list[float]
    p_value: float


def summary(rows: Rows, model: str) -> ModelLoss:
    """Loss per token, perplexity and counts of one model."""
    chosen = [row for row in rows if row["model"] == model]
    tokens = sum(row["tokens_scored"] for row in chosen)
    loss = math.fsum(row["loss_sum_nats"] for row in chosen) / tokens
    return ModelLoss(
        documents=len(chosen),
        tokens_scored=tokens,
        loss_nats_per_token=loss,
        perplexity=perplexity(loss),
    )


def perplexity(loss_nats: float) -> float:
    """exp(loss): how many equally likely tokens the model is as unsure as. At most e^700, which JSON can hold."""
    return math.exp(min(loss_nats, 700.0))


def require_trained(losses: Mapping[str, float], checks: BaseChecks) -> TrainedCheck:
    """Validation perplexities of the base model and of what it is held against, from losses in nats per token.

    CheckFailed where its own is too large a share of another.
    """
    perplexities = {name: perplexity(loss) for name, loss in losses.items()}
    limits = {name: getattr(checks, f"max_ratio_to_{name}") for name in losses if name != "base"}
    ratios = {name: perplexities["base"] / perplexities[name] for name in limits}
    for name, limit in limits.items():
        what = f"the base model is trained (validation perplexity as a multiple of the {name} model's)"
        advice = "Train longer (model.pretraining.epochs), use more text, or correct the model's folder"
        require_limit(what, ratios[name], limit, advice=advice)
    return TrainedCheck(validation_perplexity=perplexities, ratio_of_perplexities=ratios, required_ratio=limits)


def paired_difference(
    rows: Rows, model: str, reference: str, resamples: int, confidence_level: float
) -> LossDifference:
    """Loss of `model` minus loss of `reference` in nats per token, with a bootstrap interval over sources.

    Both must have scored the same documents and tokens, from two sources or more, else ValueError. Whole sources
    are resampled, together with both losses (paired); the difference is of token-weighted means.
    """
    a, b = _by_example(rows, model), _by_example(rows, reference)
    if a.keys() != b.keys() or any(a[key][:2] != b[key][:2] for key in a):
        raise ValueError(f"{model} and {reference} were not scored on the same tokens of the same documents")
    paired = [
        {"example_id": key, "source": source, "tokens": tokens, "loss": loss, "reference": b[key][2]}
        for key, (source, tokens, loss) in a.items()
    ]
    sums = sums_by_source(paired, ("loss", "reference", "tokens"))
    difference, tokens = sums["loss"] - sums["reference"], sums["tokens"]
    span = interval(_per_token, [difference, tokens], resamples, confidence_level)
    if span is None:
        raise ValueError(f"{len(tokens)} source gives no interval: score documents of two or more")
    return LossDifference(
        model=model,
        reference=reference,
        difference_nats_per_token=float(difference.sum() / tokens.sum()),
        interval_nats_per_token=span,
        p_value=exchange_p_value(_per_token, [sums["loss"], tokens], [sums["reference"], tokens]),
    )


def _per_token(nats: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return nats / tokens


def _by_example(rows: Rows, model: str) -> dict[str, tuple[str, int, float]]:
    return {
        row["example_id"]: (row["source"], row["tokens_scored"], row["loss_sum_nats"])
        for row in rows
        if row["model"] == model
    }
