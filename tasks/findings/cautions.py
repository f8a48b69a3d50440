"""Cautions that any study must show beside its numbers: Markdown, in which what matters most is bold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from storage.run_directory import SHORT_FINGERPRINT
from tasks.training.initial import InitialWeights


def begun_with_weights(model: str, weights: InitialWeights | None) -> list[str]:
    """That the training of `model` began with the weights of another run."""
    if weights is None:
        return []
    directory = f"{weights.study}/{weights.stage}/{weights.fingerprint[:SHORT_FINGERPRINT]}"
    return [f"**The pretraining of {model} began with the weights of {directory}** (model.init_from)."]


def numerics_changed(stages: Collection[str]) -> list[str]:
    """That attempts of these stages ran on different numerics."""
    if not stages:
        return []
    return [f"**Numerics changed between attempts of {', '.join(stages)}:** not the bytes of one undisturbed run."]


def numerics_differ(arms: Mapping[str, dict[str, Any]]) -> list[str]:
    """That arms (name -> numerics) ran on different numerics."""
    shared = set.intersection(*(set(found) for found in arms.values()))  # one that was begun earlier may list more
    differing = {
        key: [str(found[key]) for found in arms.values()]
        for key in next(iter(arms.values()))
        if key in shared and len({str(found[key]) for found in arms.values()}) > 1
    }
    if not differing:
        return []
    values = ", ".join(f"{key} ({', '.join(found)})" for key, found in differing.items())
    return [f"**The arms ran on different numerics** ({', '.join(arms)}): {values}."]
