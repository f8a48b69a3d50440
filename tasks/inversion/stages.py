"""Configuration and result of each stage of the inversion study. Errors are mean squares over entries of inverses."""

from typing import ClassVar

from tasks.findings.configuration import Audit
from tasks.inversion.study import Matrices, Mining, Network, Study
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget

INSIDE, OUTSIDE = SPLITS = ("validation", "out_of_distribution")
"""Fixed matrices: as those that are trained on, and harder ones."""

TOLERANCE = 1e-6
"""The most by which an answer may depend on how matrices come, in fp64."""


class OfStudy(StageConfiguration):
    """Configuration of any stage of this study."""

    STUDY: ClassVar = Study


class MatricesConfig(OfStudy):
    """inversion-matrices: the fixed matrices, and what needs no learning."""

    numerics: ClassVar = Numerics(packages=("numpy",))

    matrices: Matrices
    seed: int


class TrainsEnergy(OfStudy):
    """Configuration of a stage that trains an energy network."""

    matrices: Matrices
    network: Network
    budget: Budget
    seed: int


class PilotConfig(TrainsEnergy):
    """inversion-pilot: a short training without negatives, which must be better than methods without learning."""


class TrainConfig(TrainsEnergy):
    """inversion-train: one arm with one seed."""

    mining: Mining = scientific(description="Where its negatives come from.")


AUDITED = {
    "facts of the fixed matrices": 1e-4,
    "errors": 0.01,
    "dependence on how a matrix comes": 0.01,
}
"""Kinds of numbers that the audit computes again -> how near they must be. fp32 of the file moves an eigenvalue."""


class AuditConfig(OfStudy):
    """inversion-audit: recorded errors computed again by a plain path."""

    numerics: ClassVar = Numerics()

    network: Network
    audit: Audit


class ReportConfig(OfStudy):
    """inversion-report: statistics, tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    arms: list[str] = scientific(description="Names of the arms, in the order in which tables show them.")
    seeds: list[int]
    reference: str
    comparisons: list[list[str]] = scientific(description="Each arm and its reference.")
    confidence_level: float
    min_seeds: int
    learned_ratio: float


class Trivial(Result):
    """Errors without learning: every entry 0, and each the mean of the inverses of other matrices."""

    zero: float
    mean: float

    @property
    def by_name(self) -> dict[str, float]:
        return {"predicting zero": self.zero, "predicting the mean": self.mean}


class SplitFacts(Result):
    """Fixed matrices: how hard they are, and what needs no learning.

    `condition` are quantiles (5, 50 and 95 %) of the condition number; `clamped_share` of the entries of their inverses
    lie beyond what is ever predicted.
    """

    matrices: int
    smallest_eigenvalue: float
    condition: list[float]
    clamped_share: float
    trivial: Trivial


class MatricesResult(Result):
    """inversion-matrices. By `input_mean` and `input_deviation`, of the entries, inputs are normalised."""

    validation: SplitFacts
    out_of_distribution: SplitFacts
    input_mean: list[float]
    input_deviation: list[float]


class TrainResult(Result):
    """inversion-train, beside its records and metric rows.

    `largest_difference`: between predictions of a matrix however it comes. `descent_difference`: the same of the
    descent that it was trained with, None where it has none; `descent_defect` names what that depends on.
    """

    largest_difference: float
    descent_difference: float | None
    descent_defect: str
