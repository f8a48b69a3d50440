"""Configuration and result of each stage of the poison study, composed from the study."""

from typing import ClassVar, Literal

from tasks.attacks.configuration import Poison
from tasks.findings.configuration import Audit
from tasks.language.configuration import LabelModel
from tasks.poison.study import Detection, Factors, Queries, Study
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget

TRAINED = ("victim", "control")
REMOVED = ("detected", "random", "oracle", "untrained")
"""What is taken away: what influence found, as many at random, the poisoned rows, what the untrained model found."""
MODELS = {"victim": "model", "untrained": "initial"}
"""The models whose scores are compared, and where a victim's training kept them."""
AUDITED = dict.fromkeys(("predictions", "scores", "rows taken away", "beginnings"), 1e-3)
"""Kinds of numbers that the audit computes again -> how near they must be, relative to their usual size."""

Measures = dict[str, float]


class OfStudy(StageConfiguration):
    """Configuration of any stage of this study."""

    STUDY: ClassVar = Study
    numerics: ClassVar = Numerics(fields=("micro_batch_examples",), packages=("scikit-learn",))


class PoisonConfig(OfStudy):
    """poison-poison: the rows of one seed, some of them poisoned."""

    train_rows: int
    test_rows: int
    poison: Poison
    seed: int


class FitConfig(OfStudy):
    """poison-fit, poison-remove: one training; all of a seed begin with the same weights."""

    rows: Literal["victim", "control", "detected", "random", "oracle", "untrained"] = scientific(
        description="victim: the poisoned rows; control: the same, clean; else the poisoned ones without these."
    )
    snapshots: int = scientific(ge=0, description="Steps whose weights are kept.")
    model: LabelModel
    budget: Budget
    seed: int


class AttackConfig(OfStudy):
    """poison-attack: whether the backdoor exists."""

    seeds: list[int]
    confidence_level: float


class FactorsConfig(OfStudy):
    """poison-factors: the curvature of one model, module by module."""

    folder: Literal["model", "initial"] = scientific(description="The victim as it was trained, or as it began.")
    factors: Factors
    seed: int


class ScoresConfig(OfStudy):
    """poison-scores: what each training row does for each kind of query."""

    factors: Factors
    queries: Queries
    poison: Poison
    seed: int


class DetectConfig(OfStudy):
    """poison-detect: how well scores find the poisoned rows, and decisions without labels."""

    factors: Factors
    queries: Queries
    detection: Detection
    seed: int


class EndConfig(OfStudy):
    """poison-audit: recorded numbers again, by a plain path. poison-report: statistics, tables and report."""

    seeds: list[int]
    poison: Poison
    factors: Factors
    queries: Queries
    detection: Detection
    audit: Audit
    confidence_level: float
    min_seeds: int
    seed: int


class FitResult(Result):
    """poison-fit, poison-remove. Snapshots: folder -> learning rate at its step."""

    snapshots: dict[str, float]
