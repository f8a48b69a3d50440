"""The calorimeter study, typed: what a person writes in a profile, the UI's form, or `--set`."""

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
from tasks.stage.study import StudyBase
from tasks.stage.validation import require_once
from tasks.training.budget import Budget

Scaling = Literal["logarithm", "measured"]


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
    scaling: Scaling = scientific(
        "logarithm",
        description="How light is normalised: ln(1 + x / 1000) / 4.08, as recorded, or by mean and deviation of train.",
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
    predicted_events: int | None = scientific(
        50, ge=1, description="Events on which filling in is judged; each prediction is kept. Empty: all of validation."
    )
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
