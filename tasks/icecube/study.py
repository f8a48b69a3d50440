"""The direction study, typed: what a person writes in a profile, the UI's form, or `--set`."""

from __future__ import annotations

from typing import Annotated, ClassVar, get_args

from pydantic import Field, model_validator

from tasks.data.limits import InputLimits
from tasks.findings.configuration import Audit
from tasks.icecube.configuration import (
    Events,
    Generated,
    Network,
    RateTable,
    Scaling,
    SingleBatch,
    Split,
    Trial,
)
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.study import StudyBase
from tasks.stage.validation import require_at_most, require_different, require_once
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule

RECORDED_RATE = 3e-4
SUSPICIONS = [
    Trial(name="as-found"),
    Trial(name="learning-rate", learning_rate=1e-4),
    Trial(name="dropout", dropout=0.1),
    Trial(name="shuffle", shuffle=True),
    Trial(name="normalise", inputs="normalised"),
    Trial(name="batch-norm", batch_norm=True),
    Trial(name="warm-up", warmup_ratio=0.1),
    Trial(name="config-fixed", learning_rate=1e-4, dropout=0.1),
    Trial(name="all-fixes", inputs="normalised", learning_rate=1e-4, dropout=0.1, shuffle=True),
]
"""Suspicions of the recorded study, each by itself, and the two bundles that it proposed."""
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
    scaling: Scaling = scientific(
        "fixed",
        description="How inputs are normalised: by the fixed numbers of the recorded study's later version, by mean "
        "and deviation of train, or not at all (raw), which wants limits.reason_for_more.",
    )
    limits: InputLimits = scientific(InputLimits(), description="How large inputs may be, normalised.")
    raw_inputs_reason: str = scientific(
        min_length=10, description="Why trials and a table of rates get raw inputs; shown in the report."
    )
    network: Network = scientific(Network(), description="The network.")
    rates: RateTable = scientific(RateTable(), description="The table of learning rates, raw and normalised.")
    overfit: SingleBatch = scientific(SingleBatch(), description="The gate: the network can fit one batch.")
    trials: list[Trial] = scientific(
        SUSPICIONS, min_length=1, description="One training for each, whose end is a result."
    )
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
    def _raw_scaling_is_meant(self) -> Study:
        if self.scaling != "raw":
            return self
        if not self.limits.reason_for_more:
            raise ValueError(
                "scaling raw leaves inputs as they are: say in limits.reason_for_more why, or take fixed or measured"
            )
        if names := [trial.name for trial in self.trials if trial.inputs == "normalised"]:
            raise ValueError(
                f"scaling raw normalises nothing, so the trial {names[0]} would not get the inputs: normalised that it "
                "asks for: leave it out, or take the scaling fixed or measured"
            )
        return self

    @model_validator(mode="after")
    def _events_are_enough(self) -> Study:
        train, validation = (self.events.max_events(split) for split in get_args(Split))
        for key, budget in (("budget", self.budget), ("trial_budget", self.trial_budget)):
            if train is None or (gate := budget.not_learning) is None:
                continue
            if (steps := Schedule(budget, train).total_steps) < gate.by_step:
                raise ValueError(
                    f"{key}.not_learning.by_step {gate.by_step} is never reached: {key} comes to {steps} steps. Lower "
                    "it, or leave the gate out"
                )
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

    def changes_of(self, trial: Trial) -> list[str]:
        """Keys in which the trial differs from the training as it was found; none for the control."""
        after, before = (
            each.trained.model_dump() | self.budget_of(each).model_dump(include=OF_BUDGET)
            for each in (trial, Trial(name=trial.name))
        )
        return [name for name, value in after.items() if value != before[name]]


def _short(budget: Budget, steps: int, rate: float, batch: int) -> Budget:
    """A budget of few steps at one rate, otherwise the given one."""
    kept = {"beta_1", "beta_2", "weight_decay", "max_gradient_norm", "precision"}
    few = Budget(steps=steps, effective_batch_examples=batch, learning_rate=rate, warmup_ratio=0.0, decay="constant")
    return few.model_copy(update=budget.model_dump(include=kept))
