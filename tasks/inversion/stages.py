"""Configuration of each stage of the inversion study, composed from the study."""

from __future__ import annotations

from typing import ClassVar

from tasks.findings.configuration import Audit
from tasks.inversion.configuration import Matrices, Mining, Network, Probe
from tasks.inversion.study import Study, cell_role
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget, LearningGate

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


def for_pilot(study: Study) -> PilotConfig:
    gate = LearningGate(max_ratio=study.pilot.max_ratio, by_step=study.pilot.steps)
    short = {"steps": study.pilot.steps, "not_learning": gate, "ema_decay": None, "validations_per_epoch": 1}
    return PilotConfig.of(study, budget=study.budget.model_copy(update=short))


def for_cells(study: Study) -> dict[str, TrainConfig]:
    """Role of each cell on the page, `<arm>-<seed>` -> its configuration."""
    return {
        cell_role(arm.name, seed): TrainConfig.of(
            study, mining=arm.mining, budget=study.budget_of(arm), seed=seed, cell=f"{arm.name}, seed {seed}"
        )
        for arm in study.arms
        for seed in study.seeds
    }


def for_report(study: Study) -> ReportConfig:
    return ReportConfig.of(study, arms=[arm.name for arm in study.arms], comparisons=study.comparisons)
