"""The keys of the direction study: events, network, table of rates, trials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tasks.stage.configuration import Configuration, LocalPath, execution, scientific
from tasks.stage.validation import require_once

Split = Literal["train", "validation"]
Inputs = Literal["raw", "normalised"]
Scaling = Literal["fixed", "measured", "raw"]


class Generated(Configuration):
    """Events of our own generator, in the layout of the real ones."""

    folder: ClassVar[str] = ""
    """The place of files that the study did not write: none."""
    skip_bad_events: ClassVar[bool] = False

    source: Literal["generated"] = scientific("generated", description="Made by this study.")
    train_events: int = scientific(4000, ge=1, description="Events to train on.")
    validation_events: int = scientific(500, ge=2, description="Events to validate on, in files of their own.")
    events_per_batch: int = scientific(500, ge=1, description="Events in one file.")
    data_seed: int = scientific(0, ge=0, description="What the events are drawn with, whatever the study's seed.")

    @model_validator(mode="after")
    def _splits_have_files_of_their_own(self) -> Generated:
        if self.train_events % self.events_per_batch:
            raise ValueError(
                f"train_events {self.train_events} is no multiple of events_per_batch {self.events_per_batch}: no file "
                "may belong to two splits"
            )
        return self

    def batches(self, split: Split) -> list[int]:
        """The numbers of the split's batch files."""
        of_train = self.train_events // self.events_per_batch
        of_validation = -(-self.validation_events // self.events_per_batch)
        return list(range(1, of_train + 1) if split == "train" else range(of_train + 1, of_train + of_validation + 1))

    def max_events(self, split: Split) -> int | None:
        return self.train_events if split == "train" else self.validation_events


class Batches(Configuration):
    """Batch files in a row."""

    first_batch: int = scientific(ge=0, description="Number of the first file: train/batch_<number>.parquet.")
    last_batch: int = scientific(ge=0, description="Number of the last file.")
    max_events: int | None = scientific(None, ge=2, description="So many events, the first ones; empty: all.")

    @model_validator(mode="after")
    def _in_order(self) -> Batches:
        if self.last_batch < self.first_batch:
            raise ValueError(f"last_batch {self.last_batch} comes before first_batch {self.first_batch}: exchange them")
        return self

    @property
    def numbers(self) -> list[int]:
        return list(range(self.first_batch, self.last_batch + 1))


class Files(Configuration):
    """Files in the layout of the Kaggle competition "IceCube - Neutrinos in Deep Ice"."""

    source: Literal["files"] = scientific("files", description="Files of one's own, such as the real ones.")
    folder: LocalPath = execution(
        description="Holds train_meta.parquet, sensor_geometry.csv and train/. The content of what is used enters the "
        "fingerprint, not its place."
    )
    train: Batches = scientific(description="The files to train on.")
    validation: Batches = scientific(description="The files to validate on.")
    skip_bad_events: bool = scientific(
        False,
        added_later=True,
        description="Leave out events that are not sound, and count them in the result, in place of ending at the "
        "first.",
    )

    @model_validator(mode="after")
    def _splits_share_no_file(self) -> Files:
        if shared := sorted(set(self.train.numbers) & set(self.validation.numbers)):
            raise ValueError(
                f"train and validation share {len(shared)} files, the first batch_{shared[0]}: what a network was "
                "trained on says nothing about what it has learned"
            )
        return self

    def batches(self, split: Split) -> list[int]:
        """The numbers of the split's batch files."""
        return getattr(self, split).numbers

    def max_events(self, split: Split) -> int | None:
        return getattr(self, split).max_events

    def external_inputs(self) -> dict[str, Any]:
        from tasks.icecube.events import manifest  # takes pyarrow

        advice = "give the folder that holds train_meta.parquet, sensor_geometry.csv and train/"
        return {"files": manifest(Path(self.folder), self.train.numbers + self.validation.numbers, advice)}


Events = Annotated[Generated | Files, Field(discriminator="source")]


class Network(Configuration):
    """The transformer over an event's pulses."""

    width: int = scientific(128, ge=8, description="Width of its tokens, one for each pulse.")
    layers: int = scientific(4, ge=1, description="Layers, with LayerNorm behind each sublayer.")
    heads: int = scientific(4, ge=1, description="Attention heads in a layer.")

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Network:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is no multiple of heads {self.heads}")
        return self


class Trained(Configuration):
    """The training of the network beside its budget: what the trials change."""

    inputs: Inputs = scientific("normalised", description="Raw values of the files, or normalised ones.")
    batch_norm: bool = scientific(False, description="A BatchNorm over the features, inside the network.")
    dropout: float = scientific(0.0, ge=0, lt=1, description="Dropout in the network.")
    shuffle: bool = scientific(True, description="Files in random order, events of open files mixed; else as stored.")


class Trial(Trained):
    """A training as the recorded study did it, but for what is given here; its failure is a result."""

    name: str = execution(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Names the trial in every table.")
    inputs: Inputs = scientific("raw", description="Raw values of the files, or normalised ones.")
    shuffle: bool = scientific(False, description="Files in random order, events of open files mixed.")
    learning_rate: float | None = scientific(None, gt=0, description="Peak rate; empty: that of trial_budget.")
    warmup_ratio: float | None = scientific(None, ge=0, lt=1, description="Empty: that of trial_budget.")

    @property
    def trained(self) -> Trained:
        return self.part(Trained)


class RateTries(Configuration):
    """Short trainings at several rates, each with several seeds, judged on one fixed set of events."""

    rates: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = scientific(
        [1e-5, 3e-5, 1e-4, 3e-4, 1e-3], min_length=1, description="Rates to try."
    )
    seeds: list[int] = scientific([0, 1, 2], min_length=3, description="Initial weights and order of each try.")
    steps: int = scientific(20, ge=1, description="Steps of each try, at a constant rate.")
    probe_events: int = scientific(256, ge=2, description="Events of validation that each try is judged on.")

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for name in ("rates", "seeds"):
            require_once(name, getattr(self, name))
        return self


class RateLimits(Configuration):
    """When a rate of the table is recommended."""

    max_gradient_norm: float = scientific(100.0, gt=0, description="Largest gradient of a rate to recommend.")
    min_gain_degrees: float = scientific(
        1.0, gt=0, description="Every seed's mean angle on the probe must fall by so much, for a rate to recommend."
    )


class RateTable(RateTries, RateLimits):
    """The table of learning rates, and when one of it is recommended."""


class SingleBatch(Configuration):
    """One batch, trained on again and again: what a network that works can fit by heart."""

    events: int = scientific(64, ge=2, description="Events of train in the batch.")
    steps: int = scientific(300, ge=1, description="Steps on it.")
    learning_rate: float = scientific(1e-3, gt=0, description="At a constant rate.")
    max_ratio: float = scientific(
        0.5, gt=0, le=1, description="The mean angle on it may end at so much of the trivial."
    )
