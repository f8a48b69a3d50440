"""Losses over records: means weighted by tokens, and paired differences with intervals.

A record is a dictionary with `model`, `example_id`, `tokens_scored` and `loss_sum_nats`.
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
    """Loss of `model` minus loss of `reference` in nats per token, with a bootstrap interval over documents.

    Both must have scored the same documents and tokens, two documents or more, else ValueError. Documents are
    resampled together with both losses (paired), and the difference is of token-weighted means (BCa; Efron 1987).
    """
    a, b = _by_example(rows, model), _by_example(rows, reference)
    if a.keys() != b.keys() or any(a[key][0] != b[key][0] for key in a):
        raise ValueError(f"{model} and {reference} were not scored on the same tokens of the same documents")
    examples = sorted(a)
    if len(examples) < 2:
        raise ValueError(f"{len(examples)} document gives no interval: score two or more")
    tokens = np.array([a[key][0] for key in examples], dtype=float)
    difference = np.array([a[key][1] - b[key][1] for key in examples])

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
        "documents": len(examples),
    }


def _by_example(rows: list[dict[str, Any]], model: str) -> dict[str, tuple[int, float]]:
    return {row["example_id"]: (row["tokens_scored"], row["loss_sum_nats"]) for row in rows if row["model"] == model}
