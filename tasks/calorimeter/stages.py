"""The calorimeter study, typed: what a person writes in a profile, the UI's form, or `--set`; and configuration and
result of each of its stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from storage import external
from storage.errors import BadInput
from tasks.data.limits import InputLimits
from tasks.findings.configuration import Audit
from tasks.sensors.configuration import Filling, Network, Readings
from tasks.stage.configuration import LocalPath, execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.stage.validation import require_once
from tasks.training.budget import Budget
from tasks.training.initial import TakenPart
from tasks.training.onnx_files import OnnxFile, installed


class Generated(Readings):
    """Showers of our own generator: a point of light in the detector."""

    source: Literal["generated"] = scientific("generated", description="Made by this study.")
    train_events: int = scientific(4000, ge=2, description="Events to train on.")
    validation_events: int = scientific(800, ge=2, description="Events to judge on.")
    dead_share: float = scientific(
        0.01, ge=0, le=0.99, description="Share of the sensors that are dead, in every event."
    )
    least_energy_mev: float = scientific(15.0, gt=0, description="Energies are uniform from here,")
    most_energy_mev: float = scientific(60.0, gt=0, description="up to here.")


class RootFiles(Readings):
    """ROOT files with one tree (npho in photons, uvwTruth in cm, energyTruth in MeV), read by uproot, an extra."""

    source: Literal["files"] = scientific("files", description="Files of one's own.")
    train: list[LocalPath] = execution(min_length=1, description="Files to train on; their content counts.")
    validation: list[LocalPath] = execution(min_length=1, description="Files to judge on; their content counts.")
    tree: str = scientific("tree", min_length=1, description="The tree's name.")

    def external_inputs(self) -> dict[str, Any]:
        if missing := [file for file in (*self.train, *self.validation) if not Path(file).is_file()]:
            raise BadInput(
                f"showers: there is no file {missing[0]}: give ROOT files of yours (showers.train, .validation)"
            )
        digests = {split: external.file_manifest(getattr(self, split)) for split in ("train", "validation")}
        if {*digests["train"].values()} & {*digests["validation"].values()}:
            raise BadInput("showers: a file of train and one of validation have the same content: give each once")
        return digests


def _recorded(rate: float, batch: int) -> Budget:
    """The document gives no number of passes."""
    of_all = {"epochs": 20.0, "weight_decay": 1e-4, "decay": "cosine", "ema_decay": 0.999}
    return Budget.model_validate(of_all | {"learning_rate": rate, "effective_batch_examples": batch})


class Study(StudyBase):
    """One configured experiment: showers, network, masks, seeds."""

    seed: int = scientific(0, ge=0, description="Of the showers, of the masks to judge on, and of the pretraining.")
    seeds: list[Annotated[int, Field(ge=0)]] = scientific(
        [0, 1, 2, 3, 4], min_length=2, description="Regressors and inpainters are trained with each of them."
    )
    showers: Annotated[Generated | RootFiles, Field(discriminator="source")] = scientific(
        Generated(), description="Where the events come from."
    )
    limits: InputLimits = scientific(InputLimits(), description="How large inputs may be, normalised.")
    network: Network = scientific(Network(), description="The encoder of every model.")
    mae: Filling = scientific(Filling(mask_ratio=0.6), description="What the pretraining hides.")
    mae_budget: Budget = scientific(_recorded(2.5e-4, 1024), description="What the pretraining may spend.")
    loss_beta: float = scientific(1.0, gt=0, description="Errors above it count linearly, in deviations of the truth.")
    budget: Budget = scientific(_recorded(3e-4, 4096), description="What each regressor may spend.")
    inpaint: Filling = scientific(Filling(mask_ratio=0.05), description="What is hidden from the inpainters.")
    inpaint_budget: Budget = scientific(_recorded(1e-4, 1024), description="What each inpainter may spend.")
    bright_photons: float = scientific(100.0, gt=0, description="Sensors with so much light or more are bright.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
    min_seeds: int = scientific(3, ge=2, description="Of fewer seeds nothing is called better.")
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "seeds", "showers", "mae.mask_ratio", "mae_budget.epochs", "budget.epochs",
        "inpaint.mask_ratio", "inpaint_budget.epochs", "execution.device", "execution.micro_batch_examples",
    )  # fmt: skip

    @model_validator(mode="after")
    def _fits_together(self) -> Study:
        require_once("seeds", self.seeds, "it would count as two draws and be one. Give each seed once")
        if self.network.width % self.network.heads:
            raise ValueError(f"network.width {self.network.width} is no multiple of heads {self.network.heads}")
        if self.bright_photons > self.showers.max_photons:
            raise ValueError("bright_photons is above showers.max_photons: no sensor would be bright")
        if isinstance(self.showers, Generated) and self.showers.most_energy_mev > self.showers.max_energy_mev:
            raise ValueError("showers.most_energy_mev is above showers.max_energy_mev: such events would be refused")
        if isinstance(self.showers, Generated) and self.showers.least_energy_mev >= self.showers.most_energy_mev:
            raise ValueError("showers.least_energy_mev is not below most_energy_mev: no energy lies between")
        try:
            self.budget.with_work_of(self.mae_budget)  # of the arm that is trained as long as both
        except ValueError as error:
            raise ValueError(f"budget and mae_budget: {error}. Give both epochs, or both steps") from None
        return self


REGRESSORS = ("scratch", "scratch-longer", "mae-init", "raw")
INPAINTERS = ("scratch", "frozen", "finetune")
EXPORTED = "exports"
AUDIT_TOLERANCE = 1e-3
AUDITED = dict.fromkeys(("residuals", "sums", "forwards", "repeated events"), AUDIT_TOLERANCE)
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

    max_absolute_z: float = scientific(description="How large light may be, normalised.")


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


class ExportConfig(OfStudy):
    """calorimeter-export: regressors as ONNX files. It runs anew where what it takes is installed later."""

    numerics: ClassVar = Numerics()

    def external_inputs(self) -> dict[str, Any]:
        return {"onnx": {"packages": installed()}}


class EndConfig(OfStudy):
    """calorimeter-audit: recorded numbers again, by a plain path. calorimeter-report: statistics, tables and report."""

    seeds: list[int]
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
