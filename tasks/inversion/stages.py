"""Configuration of each stage of the inversion study."""

from typing import ClassVar

from tasks.findings.configuration import Audit
from tasks.inversion.configuration import Matrices, Mining, Network, Probe
from tasks.inversion.study import Study
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget

INSIDE, OUTSIDE = SPLITS = ("validation", "out_of_distribution")
"""Fixed matrices: as those that are trained on, and harder ones."""


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

    def multiplications(self) -> float:
        from tasks.inversion.energy import EnergyNetwork
        from tasks.training.weights import number_of_weights

        size = (self.matrices.entries, self.network.width, self.network.diffusion_steps)
        return self.execution.micro_batch_examples * number_of_weights(EnergyNetwork, *size, None, None)


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
