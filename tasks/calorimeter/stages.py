"""Configuration and result of each stage of the calorimeter study."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from tasks.calorimeter.study import Generated, RootFiles, Scaling, Study
from tasks.data.limits import InputLimits
from tasks.findings.configuration import Audit
from tasks.sensors.configuration import Filling, Network
from tasks.stage.configuration import scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget
from tasks.training.initial import TakenPart
from tasks.training.onnx_files import OnnxFile, installed

REGRESSORS = ("scratch", "scratch-longer", "mae-init", "raw")
INPAINTERS = ("scratch", "frozen", "finetune")
EXPORTED = "exports"
AUDIT_TOLERANCE = 1e-3
AUDITED = dict.fromkeys(("residuals", "sums", "neighbours", "forwards", "repeated events"), AUDIT_TOLERANCE)
"""Kinds of numbers that the audit computes again, to within so much of its usual size; where models are
exported, what their files say too."""
Measures = dict[str, float]


class OfStudy(StageConfiguration):
    """Configuration of any stage of this study."""

    STUDY: ClassVar = Study


class ShowersConfig(OfStudy):
    """calorimeter-showers: the events, generated or read, and whether they are sound."""

    numerics: ClassVar = Numerics(packages=("numpy",), torch=False)

    showers: Annotated[Generated | RootFiles, Field(discriminator="source")]
    seed: int


class LookConfig(OfStudy):
    """calorimeter-look: statistics of the light, the one normaliser, and what needs no learning."""

    numerics: ClassVar = Numerics()

    scaling: Scaling
    max_absolute_z: float | None = scientific(description="How large light may be, normalised; empty: as it is.")


class FitConfig(OfStudy):
    """Any training."""

    arm: str = scientific(description="How its encoder begins, and whether light is normalised.")
    network: Network
    budget: Budget
    seed: int


class RegressConfig(FitConfig):
    """calorimeter-regress: place and energy of each event."""

    loss_beta: float


class FillConfig(FitConfig):
    """calorimeter-mae, calorimeter-inpaint: what hidden sensors would show."""

    filling: Filling = scientific(description="What is hidden.")
    mask_seed: int = scientific(description="Of the masks to judge on.")


class JudgeConfig(OfStudy):
    """calorimeter-judge: what networks that fill in miss; other values train nothing anew."""

    bright_photons: float
    predicted_events: int | None


class ExportConfig(OfStudy):
    """calorimeter-export: regressors as ONNX files. It runs anew where what it takes is installed later."""

    numerics: ClassVar = Numerics()

    def external_inputs(self) -> dict[str, Any]:
        return {"onnx": {"packages": installed()}}


class EndConfig(OfStudy):
    """calorimeter-audit: recorded numbers again, by a plain path. calorimeter-report: statistics, tables and report."""

    seeds: list[int]
    limits: InputLimits
    audit: Audit
    confidence_level: float
    min_seeds: int
    seed: int


class ShowersResult(Result):
    """Events of each split, the fewest and the most sensors that are alive in one, and how many of a split have the
    light of one before them."""

    events: dict[str, int]
    live_sensors: list[int]
    repeated: dict[str, int] = Field(default_factory=dict)


class LookResult(Result):
    """`columns` as of `tasks.data.statistics`; `trivial`: what predicting the mean of train misses, by target."""

    columns: list[dict[str, Any]]
    trivial: Measures


class FitResult(Result):
    """`taken`: where an encoder began as another. Records, metric rows and `model/` hold the rest."""

    taken: TakenPart | None


class ExportResult(Result):
    """The files by the role of their model; none where the extra `export` is not installed."""

    files: dict[str, OnnxFile]
