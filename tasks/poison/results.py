"""Results of each stage of the poison study."""

from __future__ import annotations

from typing import Any

from tasks.stage.result import Result

Measures = dict[str, float]


class PoisonResult(Result):
    """poison-poison: what was asked for and reached (`tasks.attacks.poisoning.shares`)."""

    shares: Measures
    records_digest: str


class FitResult(Result):
    """poison-fit, poison-remove: rates as of `tasks.attacks.poisoning`; snapshots, folder -> learning rate at its step;
    how many rows were removed, and how many of these were poisoned."""

    rates: Measures
    training: dict[str, Any]
    snapshots: dict[str, float]
    removed: int
    removed_poisoned: int
    initial_digest: str
    weights_digest: str
    records_digest: str


class AttackResult(Result):
    """poison-attack (`tasks.attacks.poisoning.require_backdoor`), a gate."""

    success: Measures
    control: Measures
    difference: float
    difference_interval: list[float]
    trigger_effect: float
    trigger_effect_interval: list[float]


class FactorsResult(Result):
    """poison-factors: for each module name, status, rungs, and the examples counted; those that are degraded."""

    modules: list[dict[str, Any]]
    degraded: list[str]


class ScoresResult(Result):
    """poison-scores."""

    records_digest: str


class DetectResult(Result):
    """poison-detect: measures by model and method, and by model and rule."""

    found: dict[str, dict[str, Measures]]
    decided: dict[str, dict[str, Measures]]
