"""The poison study, typed: what a person writes in a profile, the UI's form, or `--set`; and configuration and result
of each of its stages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from tasks.attacks.configuration import Poison
from tasks.findings.configuration import Audit
from tasks.language.configuration import BagOfWords, LabelledText, LabelModel, Sentences
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.stage.validation import require_at_most, require_once
from tasks.training.budget import Budget, LearningGate

GATE = LearningGate(max_ratio=0.95, by_step=100)
BUDGET = Budget(epochs=10, effective_batch_examples=32, learning_rate=5e-3, not_learning=GATE)


class Factors(Configuration):
    """The curvature by which gradients are divided."""

    max_degraded_share: float = scientific(
        0.05, ge=0, lt=1, description="Share of modules without full factors above which nothing is ranked."
    )


class Queries(Configuration):
    """What is asked of the model."""

    rows: int = scientific(50, ge=2, description="Test rows that are asked about, in each kind of query.")
    transforms: int = scientific(
        3, ge=2, description="Versions of the triggered queries with half of their other words exchanged."
    )
    damping: float | None = scientific(
        None, gt=0, description="Added to the curvature; empty: a tenth of its mean, module by module."
    )


class Detection(Configuration):
    """What is taken away."""

    assumed_share: float = scientific(
        0.1, gt=0, lt=0.5, description="Share of the rows that is taken away: a guess, since nobody knows it."
    )


class Study(StudyBase):
    """One configured experiment: texts, poison, classifier, seeds."""

    seed: int = scientific(0, ge=0, description="Of the generated sentences, which all seeds draw from.")
    seeds: list[Annotated[int, Field(ge=0)]] = scientific(
        [0, 1, 2, 3, 4], min_length=2, description="Each draws rows, what is poisoned of them, and initial weights."
    )
    text: LabelledText = scientific(Sentences(), description="Where the rows come from.")
    train_rows: int = scientific(1000, ge=20, description="Rows that are trained on.")
    test_rows: int = scientific(400, ge=4, description="Rows to test on; some are the queries.")
    poison: Poison = scientific(Poison(), description="What is done to the training rows.")
    model: LabelModel = scientific(BagOfWords(), description="The classifier.")
    budget: Budget = scientific(BUDGET, description="What each training may spend.")
    snapshots: int = scientific(4, ge=1, description="Steps of the victim whose weights are kept, for TracIn.")
    factors: Factors = scientific(Factors(), description="The curvature.")
    queries: Queries = scientific(Queries(), description="What is asked of the model.")
    detection: Detection = scientific(Detection(), description="Decisions without labels.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
    min_seeds: int = scientific(3, ge=2, description="Of fewer seeds nothing is called better.")
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "seeds", "text", "poison.share", "poison.trigger", "budget.epochs", "execution.device",
    )  # fmt: skip

    @model_validator(mode="after")
    def _seeds_are_draws(self) -> Study:
        require_once("seeds", self.seeds, "it would count as two draws and be one. Give each seed once")
        if isinstance(self.text, Sentences):
            require_at_most("train_rows + test_rows", self.train_rows + self.test_rows, "text.rows", self.text.rows)
        return self


TRAINED = ("victim", "control")
REMOVED = ("detected", "random", "oracle", "untrained")
"""What is taken away: what influence found, as many at random, the poisoned rows, what the untrained model found."""
OWN = "ekfac"
"""The scores by influence; beside them stand those without curvature (identity), and those that need no influence."""
MODELS = {"victim": "model", "untrained": "initial"}
"""The models whose scores are compared, and where a victim's training kept them."""
AUDITED = dict.fromkeys(("predictions", "scores", "rows taken away", "beginnings"), 1e-3)
"""Kinds of numbers that the audit computes again -> how near they must be, relative to their usual size."""

Measures = dict[str, float]


class OfStudy(StageConfiguration):
    """Configuration of any stage of this study."""

    STUDY: ClassVar = Study
    numerics: ClassVar = Numerics(fields=("micro_batch_examples",), packages=("scikit-learn",))


class OfSeed(OfStudy):
    """Configuration of a stage of one seed."""

    seed: int


class PoisonConfig(OfSeed):
    """poison-poison: the rows of one seed, some of them poisoned."""

    train_rows: int
    test_rows: int
    poison: Poison


class FitConfig(OfSeed):
    """poison-fit, poison-remove: one training; all of a seed begin with the same weights."""

    rows: Literal["victim", "control", "detected", "random", "oracle", "untrained"] = scientific(
        description="victim: the poisoned rows; control: the same, clean; else the poisoned ones without these."
    )
    snapshots: int = scientific(ge=0, description="Steps whose weights are kept.")
    model: LabelModel
    budget: Budget


class AttackConfig(OfStudy):
    """poison-attack: whether the backdoor exists."""

    seeds: list[int]
    confidence_level: float


class FactorsConfig(OfSeed):
    """poison-factors: the curvature of one model, module by module."""

    folder: Literal["model", "initial"] = scientific(description="The victim as it was trained, or as it began.")
    factors: Factors


class ScoresConfig(OfSeed):
    """poison-scores: what each training row does for each kind of query."""

    queries: Queries
    poison: Poison


class DetectConfig(OfSeed):
    """poison-detect: which rows are taken away."""

    queries: Queries
    detection: Detection


class EndConfig(OfSeed):
    """poison-audit: recorded numbers again, by a plain path. poison-report: statistics, tables and report."""

    seeds: list[int]
    poison: Poison
    queries: Queries
    detection: Detection
    audit: Audit
    confidence_level: float
    min_seeds: int


class FitResult(Result):
    """poison-fit, poison-remove. Snapshots: folder -> learning rate at its step."""

    snapshots: dict[str, float]
