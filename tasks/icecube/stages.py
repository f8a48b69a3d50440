"""Configuration of each stage of the direction study."""

from typing import Any, ClassVar, Self

from tasks.findings.configuration import Audit
from tasks.icecube.study import (
    Changes,
    Events,
    Inputs,
    Network,
    RateLimits,
    RateTable,
    RateTries,
    SingleBatch,
    Study,
    Trained,
)
from tasks.stage.configuration import LocalPath, execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.training.budget import Budget


class OfStudy(StageConfiguration):
    """Configuration of any stage of this study."""

    STUDY: ClassVar = Study


class PulsesConfig(OfStudy):
    """icecube-pulses: the files, written or found, and whether they are sound."""

    numerics: ClassVar = Numerics(packages=("numpy", "pyarrow"), torch=False)

    events: Events


class OfFolder(OfStudy):
    """Configuration of a stage that opens the files."""

    folder: LocalPath = execution("", description="Where files lie that the study did not write; empty: it did.")
    pulses_per_event: int

    @classmethod
    def of(cls, study: StudyBase, /, **more: Any) -> Self:
        assert isinstance(study, Study)
        return super().of(study, folder=study.events.folder, **more)


class ReadsEvents(OfFolder):
    """Configuration of a stage that reads events."""

    open_files: int


class LookConfig(ReadsEvents):
    """icecube-look: statistics of the inputs, the normaliser, and what needs no learning."""

    numerics: ClassVar = Numerics()

    max_absolute_z: float = scientific(description="How large they may be, normalised.")


class TrainsNetwork(ReadsEvents):
    """Configuration of a stage that trains a network."""

    network: Network
    budget: Budget


class RatesConfig(TrainsNetwork):
    """icecube-rates: what learning rates do in a few steps, with several seeds."""

    inputs: Inputs = scientific(description="What the network gets.")
    table: RateTries = scientific(description="What is tried.")
    dropout: float


class OverfitConfig(TrainsNetwork):
    """icecube-overfit: whether the network can fit one batch."""

    batch: SingleBatch = scientific(description="The batch, and how well it must be fitted.")
    seed: int


class TrialConfig(TrainsNetwork):
    """icecube-trial: a training as the recorded study did it, with one change; its failure is a result."""

    trained: Trained = scientific(description="How, beside the budget.")
    seed: int


class TrainConfig(TrainsNetwork):
    """icecube-train: the training with everything that was found."""

    trained: Trained = scientific(description="How, beside the budget.")
    rate_limits: RateLimits | None = scientific(description="When a rate is recommended; empty: that of the budget.")
    seed: int


AUDIT_TOLERANCE = 0.01
"""Degrees. The same event alone and among others differs by some 1e-4 in fp32; a step of a training by far more."""
AUDITED = {
    "events and pulses of files": 1e-6,
    "trivial angle": AUDIT_TOLERANCE,
    "angles": AUDIT_TOLERANCE,
    "failures": 0.5,
    "outputs of the training": 1e-3,
}
"""Kinds of numbers that the audit computes again -> how near they must be."""


class AuditConfig(OfFolder):
    """icecube-audit: recorded angles computed again by a plain path."""

    numerics: ClassVar = Numerics()

    audit: Audit


class ReportConfig(OfStudy):
    """icecube-report: tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    trials: list[str] = scientific(description="Names of the trials, in the order in which tables show them.")
    changes: dict[str, Changes] = scientific(description="What each of them changes; nothing is the control.")
    trial_seeds: list[int]
    healed_ratio: float
    min_spread_ratio: float
    max_dead_share: float
    rates: RateTable
    take_recommended_rate: bool
