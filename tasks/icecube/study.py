"""The direction study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from tasks.data.limits import InputLimits
from tasks.findings.configuration import Audit
from tasks.stage.configuration import Configuration, LocalPath, execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.stage.validation import require_at_most, require_different, require_once
from tasks.training.budget import Budget

Split = Literal["train", "validation"]
Inputs = Literal["raw", "normalised"]
Changes = dict[str, str | float | bool]
"""Keys of a training that a trial sets, with their values."""


class Generated(Configuration):
    """Events of our own generator, in the layout of the real ones."""

    folder: ClassVar[str] = ""
    """The place of files that the study did not write: none."""

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

        return {"files": manifest(Path(self.folder), self.train.numbers + self.validation.numbers)}


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


RECORDED_RATE = 3e-4
OF_BUDGET = {"learning_rate", "warmup_ratio"}
"""The keys of a budget that a trial can change."""


class Study(StudyBase):
    """One configured experiment: events, network, trials, training."""

    seed: int = scientific(42, ge=0, description="Of the training: initial weights, order of the events, dropout.")
    events: Events = scientific(Generated(), description="Where the events come from.")
    pulses_per_event: int = scientific(512, ge=1, description="Most pulses of an event that the network gets.")
    open_files: int = scientific(
        4, ge=1, description="Files whose events are mixed with each other when shuffled, and kept in memory."
    )
    limits: InputLimits = scientific(InputLimits(), description="How large inputs may be, normalised.")
    network: Network = scientific(Network(), description="The network.")
    rates: RateTable = scientific(RateTable(), description="The table of learning rates, raw and normalised.")
    overfit: SingleBatch = scientific(SingleBatch(), description="The gate: the network can fit one batch.")
    trials: list[Trial] = scientific(min_length=1, description="One training for each, whose end is a result.")
    trial_seeds: list[Annotated[int, Field(ge=0)]] = scientific(
        [1, 2, 3], min_length=1, description="Each trial is made with each of them."
    )
    trial_budget: Budget = scientific(
        Budget(
            epochs=20.0,
            effective_batch_examples=256,
            learning_rate=RECORDED_RATE,
            warmup_ratio=0.0,
            decay="constant",
            weight_decay=1e-5,
        ),
        description="What each trial may spend: as the recorded study did.",
    )
    healed_ratio: float = scientific(
        0.25,
        gt=0,
        le=1,
        description="A trial is healed when with every seed it ends at so much of the trivial angle, or less.",
    )
    take_recommended_rate: bool = scientific(
        True, description="Train with the rate that the table recommends, in place of budget.learning_rate."
    )
    budget: Budget = scientific(
        Budget(epochs=20.0, effective_batch_examples=256, learning_rate=RECORDED_RATE, weight_decay=1e-5),
        description="What the training may spend.",
    )
    dropout: float = scientific(0.0, ge=0, lt=1, description="Of the training.")
    min_spread_ratio: float = scientific(
        0.3, ge=0, description="A trained network whose outputs spread less, as a share of the truth's, has collapsed."
    )
    max_dead_share: float = scientific(0.9, ge=0, le=1, description="And so has one with more dead units in a layer.")
    audit: Audit = scientific(Audit(), description="What is computed again, by a plain path, before the report.")
    execution: Execution = execution(Execution(), description="How the work is done on this machine.")

    CHANGED_FIRST: ClassVar[tuple[str, ...]] = (
        "name", "seed", "trial_seeds", "pulses_per_event", "budget.epochs", "budget.learning_rate",
        "take_recommended_rate", "execution.device", "execution.micro_batch_examples",
    )  # fmt: skip

    @model_validator(mode="after")
    def _trials_are_told_apart(self) -> Study:
        require_once("trials", [trial.name for trial in self.trials], "give each a name of its own")
        require_once("trial_seeds", self.trial_seeds)
        require_different("trials", {trial.name: (trial.trained, self.budget_of(trial)) for trial in self.trials})
        size, batch = self.execution.micro_batch_examples, self.trial_budget.effective_batch_examples
        if size < batch and (names := [trial.name for trial in self.trials if trial.batch_norm]):
            raise ValueError(
                f"the trial {names[0]} has batch_norm, whose statistics are those of a micro-batch: with "
                f"execution.micro_batch_examples {size} below trial_budget.effective_batch_examples {batch} it would "
                "be another network. Raise the first, or leave the trial out"
            )
        return self

    @model_validator(mode="after")
    def _events_are_enough(self) -> Study:
        train, validation = (self.events.max_events(split) for split in get_args(Split))
        require_at_most("rates.probe_events", self.rates.probe_events, "the events of validation,", validation)
        require_at_most("overfit.events", self.overfit.events, "the events of train,", train)
        return self

    def budget_of(self, trial: Trial) -> Budget:
        return self.trial_budget.model_copy(update=trial.model_dump(include=OF_BUDGET, exclude_none=True))

    def rates_budget(self, budget: Budget) -> Budget:
        """A recommendation holds for the budget that it was made with: that of the training it is for."""
        return _short(budget, self.rates.steps, self.rates.rates[0], budget.effective_batch_examples)

    @property
    def overfit_budget(self) -> Budget:
        batch = self.overfit
        return _short(self.budget, batch.steps, batch.learning_rate, batch.events)

    def changes_of(self, trial: Trial) -> Changes:
        """The keys in which the trial differs from the training as it was found; none for the control."""
        after, before = (
            each.trained.model_dump() | self.budget_of(each).model_dump(include=OF_BUDGET)
            for each in (trial, Trial(name=trial.name))
        )
        return {name: value for name, value in after.items() if value != before[name]}


def _short(budget: Budget, steps: int, rate: float, batch: int) -> Budget:
    """A budget of few steps at one rate, otherwise the given one."""
    kept = {"beta_1", "beta_2", "weight_decay", "max_gradient_norm", "precision"}
    few = Budget(steps=steps, effective_batch_examples=batch, learning_rate=rate, warmup_ratio=0.0, decay="constant")
    return few.model_copy(update=budget.model_dump(include=kept))
