"""What each stage of the direction study is given; the page composes it from the study."""

from __future__ import annotations

from typing import Any, ClassVar

from tasks.icecube.configuration import Events, Inputs, Network, RateLimits, RateTries, Scaling, SingleBatch, Trained
from tasks.report.configuration import Audit
from tasks.stage.configuration import LocalPath, execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget


class PulsesConfig(StageConfiguration):
    """icecube-pulses: the files, written or found, and whether they are sound."""

    numerics: ClassVar = Numerics(packages=("numpy", "pyarrow"), torch=False)

    events: Events = scientific(description="Where the events come from.")


class ReadsEvents(StageConfiguration):
    """What every stage that reads events is given."""

    folder: LocalPath = execution("", description="Where files lie that the study did not write; empty: it did.")
    pulses_per_event: int = scientific(ge=1, description="Most pulses of an event that the network gets.")
    open_files: int = scientific(ge=1, description="Files whose events are mixed with each other, and kept in memory.")


class LookConfig(ReadsEvents):
    """icecube-look: statistics of the inputs, the normaliser, and what needs no learning."""

    numerics: ClassVar = Numerics()

    scaling: Scaling = scientific(description="How inputs are normalised.")
    max_absolute_z: float | None = scientific(description="How large they may be, normalised; empty: as they are.")


class TrainsNetwork(ReadsEvents):
    """What every stage that trains a network is given."""

    network: Network = scientific(description="The network.")
    budget: Budget = scientific(description="What a training may spend.")


class RatesConfig(TrainsNetwork):
    """icecube-rates: what learning rates do in a few steps, with several seeds."""

    inputs: Inputs = scientific(description="What the network gets.")
    table: RateTries = scientific(description="What is tried.")
    dropout: float = scientific(ge=0, lt=1, description="As in the training that a rate is for.")


class OverfitConfig(TrainsNetwork):
    """icecube-overfit: whether the network can fit one batch."""

    batch: SingleBatch = scientific(description="The batch, and how well it must be fitted.")
    seed: int = scientific(ge=0, description="Initial weights.")


class TrialConfig(TrainsNetwork):
    """icecube-trial: a training as the recorded study did it, with one change; its failure is a result."""

    trained: Trained = scientific(description="How, beside the budget.")
    seed: int = scientific(ge=0, description="Initial weights, order of the events, dropout.")


class TrainConfig(TrainsNetwork):
    """icecube-train: the training with everything that was found."""

    trained: Trained = scientific(description="How, beside the budget.")
    rate_limits: RateLimits | None = scientific(description="When a rate is recommended; empty: that of the budget.")
    min_spread_ratio: float = scientific(ge=0, description="Of outputs, as a share of the truth's.")
    max_dead_share: float = scientific(ge=0, le=1, description="Of the units of a layer.")
    seed: int = scientific(ge=0, description="Initial weights, order of the events, dropout.")


AUDITED = ("angles", "trivial angle")
"""Kinds of numbers that the audit computes again."""
AUDIT_TOLERANCE = 0.01
"""Degrees. The same event alone and among others differs by some 1e-4 in fp32; a step of a training by far more."""


class AuditConfig(StageConfiguration):
    """icecube-audit: recorded angles computed again by a plain path."""

    numerics: ClassVar = Numerics()

    folder: LocalPath = execution("", description="Where files lie that the study did not write; empty: it did.")
    pulses_per_event: int = scientific(ge=1, description="Most pulses of an event that the network gets.")
    seed: int = scientific(ge=0, description="What draws the examples.")
    audit: Audit = scientific(description="How much is computed again.")


class ReportConfig(StageConfiguration):
    """icecube-report: tables and report."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    trials: list[str] = scientific(description="Names of the trials, in the order in which tables show them.")
    trial_seeds: list[int] = scientific(description="The seeds of each.")
    healed_ratio: float = scientific(description="What counts as healed.")
    rate_limits: RateLimits = scientific(description="When a rate is recommended.")
    raw_inputs_reason: str = scientific(description="Why some trainings get raw inputs.")
    reason_for_more: str | None = scientific(description="Why inputs may be as large as they are, normalised.")
    configuration: dict[str, Any] = execution(description="The scientific fields of the study, kept with the results.")
    profile: dict[str, Any] = execution(description="The whole study, for the command that makes it again.")
