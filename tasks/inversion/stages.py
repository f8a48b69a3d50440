"""Configuration and result of each stage of the inversion study. Errors are mean squares over entries of inverses."""

from typing import ClassVar

from tasks.findings.configuration import Audit
from tasks.inversion.study import Matrices, Mining, Network, Probe, Study
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


class ProbeConfig(OfStudy):
    """inversion-probe: the negatives that trained networks would be given, looked at."""

    network: Network
    probe: Probe
    seed: int


AUDITED = {
    "facts of the fixed matrices": 1e-4,
    "errors": 0.01,
    "dependence on how a matrix comes": 0.01,
    "facts of negatives": 0.05,
}
"""Kinds of numbers that the audit computes again -> how near they must be. fp32 of the file moves an eigenvalue; a step
down the energy is kept or not by a comparison, which rounding may turn."""


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


class NegativeFacts(Result):
    """Negatives of one arm's network at one step of the diffusion, after so many steps down the energy.

    `condition` and `smallest_singular_value` (medians) are of the negatives y, and of the true inverses under
    `true_...`: A is never mined. `residual` is the mean |A y - I|, `distance` the mean distance from the inverse
    relative to its norm, and `false_share` of them lie nearer than the limit. `energy_gap` is the mean of E(true) -
    E(negative), and `below_share` of the negatives have the lower energy. `spread` is the mean deviation of their
    entries over matrices, as a share of that of the inverses; `kept_share` of the steps down the energy were kept.
    """

    arm: str
    time: int
    descent_steps: int
    condition: float
    true_condition: float
    smallest_singular_value: float
    true_smallest_singular_value: float
    residual: float
    distance: float
    false_share: float
    energy_gap: float
    below_share: float
    kept_share: float
    spread: float
    gradient_norm: float


class ProbeResult(Result):
    """inversion-probe. It is the conditioning of y that is looked at, since A is never mined."""

    negatives: list[NegativeFacts]
