"""What each stage of the inversion study is given; the page composes it from the study."""

from __future__ import annotations

from typing import Any, ClassVar

from tasks.inversion.configuration import Matrices, Mining, Network, Probe
from tasks.report.configuration import Audit
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget


class MatricesConfig(StageConfiguration):
    """inversion-matrices: the fixed matrices, and what needs no learning."""

    numerics: ClassVar = Numerics(packages=("numpy",))

    matrices: Matrices = scientific(description="Which.")
    seed: int = scientific(ge=0, description="What they are drawn with.")


class TrainsEnergy(StageConfiguration):
    """What every stage that trains an energy network is given."""

    matrices: Matrices = scientific(description="What is inverted.")
    network: Network = scientific(description="The network and its diffusion.")
    budget: Budget = scientific(description="What the training may spend.")
    seed: int = scientific(ge=0, description="Initial weights, matrices to train on, noise.")


class PilotConfig(TrainsEnergy):
    """inversion-pilot: a short training without negatives, which must be better than methods without learning."""


class TrainConfig(TrainsEnergy):
    """inversion-train: one arm with one seed."""

    mining: Mining = scientific(description="Where its negatives come from.")


class ProbeConfig(StageConfiguration):
    """inversion-probe: the negatives that trained networks would be given, looked at."""

    network: Network = scientific(description="The networks and their diffusion.")
    probe: Probe = scientific(description="What is asked.")
    seed: int = scientific(ge=0, description="The noise that negatives begin with.")


AUDITED = ("errors",)
"""Kinds of numbers that the audit computes again."""
AUDIT_TOLERANCE = 0.01
"""Of an error. A step down the energy is kept or not by a comparison in fp32, which rounding may decide otherwise."""


class AuditConfig(StageConfiguration):
    """inversion-audit: recorded errors computed again by a plain path."""

    numerics: ClassVar = Numerics()

    network: Network = scientific(description="The networks and their diffusion.")
    seed: int = scientific(ge=0, description="What draws the examples.")
    audit: Audit = scientific(description="How much is computed again.")


class ReportConfig(StageConfiguration):
    """inversion-report: statistics, tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    arms: list[str] = scientific(description="Names of the arms, in the order in which tables show them.")
    seeds: list[int] = scientific(description="The seeds of each.")
    comparisons: list[list[str]] = scientific(description="Each arm and its reference.")
    confidence_level: float = scientific(description="Of every interval.")
    min_seeds: int = scientific(description="Of fewer nothing is called better.")
    learned_ratio: float = scientific(description="An arm above this share of the trivial error has not learned.")
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    profile: dict[str, Any] = execution(description="The whole study, for the command that makes it again.")
