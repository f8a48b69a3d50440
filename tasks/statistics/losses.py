"""Losses over records: means weighted by tokens, and paired differences with intervals.

A record is a dictionary with `model`, `example_id`, `source`, `tokens_scored` and `loss_sum_nats`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import bootstrap

RESAMPLING_SEED = 0
"""Resampling is part of the result, so its seed is fixed; the interval is a function of the records."""


def summary(rows: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """Loss per token, perplexity and counts of one model."""
    chosen = [row for row in rows if row["model"] == model]
    tokens = sum(row["tokens_scored"] for row in chosen)
    loss = math.fsum(row["loss_sum_nats"] for row in chosen) / tokens
    return {
        "documents": len(chosen),
        "tokens_scored": tokens,
        "loss_nats_per_token": loss,
        "perplexity": math.exp(min(loss, 700.0)),  # JSON holds no infinity
    }


def paired_difference(
    rows: list[dict[str, Any]], model: str, reference: str, resamples: int, confidence_level: float
) -> dict[str, Any]:
    """Loss of `model` minus loss of `reference` in nats per token, with a bootstrap interval over sources.

    Both must have scored the same documents and tokens, from two sources or more, else ValueError. Documents of
    one source (docstrings of one file) resemble each other, so whole sources are resampled, together with both
    losses (paired); the difference is of token-weighted means (BCa; Efron 1987).
    """
    a, b = _by_example(rows, model), _by_example(rows, reference)
    if a.keys() != b.keys() or any(a[key][:2] != b[key][:2] for key in a):
        raise ValueError(f"{model} and {reference} were not scored on the same tokens of the same documents")
    sources = sorted({source for source, _, _ in a.values()})
    if len(sources) < 2:
        raise ValueError(f"{len(sources)} source gives no interval: score documents of two or more")
    place = {source: number for number, source in enumerate(sources)}
    tokens, difference = np.zeros(len(sources)), np.zeros(len(sources))
    for example in sorted(a):
        source, scored, loss = a[example]
        tokens[place[source]] += scored
        difference[place[source]] += loss - b[example][2]

    def mean_difference(sums: np.ndarray, counts: np.ndarray, axis: int = -1) -> np.ndarray:
        return sums.sum(axis=axis) / counts.sum(axis=axis)

    low = high = 0.0
    if difference.any():  # where two models agree on every document no resample differs, and BCa is undefined
        low, high = bootstrap(
            (difference, tokens),
            mean_difference,
            paired=True,
            vectorized=True,
            n_resamples=resamples,
            batch=100,
            confidence_level=confidence_level,
            method="BCa",
            rng=np.random.default_rng(RESAMPLING_SEED),
        ).confidence_interval
    return {
        "model": model,
        "reference": reference,
        "difference_nats_per_token": float(mean_difference(difference, tokens)),
        "interval_nats_per_token": [float(low), float(high)],
        "confidence_level": confidence_level,
        "documents": len(a),
        "sources": len(sources),
    }


def _by_example(rows: list[dict[str, Any]], model: str) -> dict[str, tuple[str, int, float]]:
    return {
        row["example_id"]: (row["source"], row["tokens_scored"], row["loss_sum_nats"])
        for row in rows
        if row["model"] == model
    }
