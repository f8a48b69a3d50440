"""The gates before a number of the direction study is shown: a stage's own words beside its files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from storage.errors import require, require_close, require_distinct, require_equal, require_limit
from storage.records import read_records, records_digest
from tasks.icecube.pulses import SPLITS, split_facts
from tasks.icecube.results import (
    CONSTANT,
    LookResult,
    OverfitResult,
    PulsesResult,
    RatesResult,
    TrainResult,
    TrialResult,
)
from tasks.icecube.stages import AUDIT_TOLERANCE, OverfitConfig, PulsesConfig, TrainConfig, TrialConfig
from tasks.stage.run import StageInput
from tasks.training.logged import require_trained
from tasks.training.schedule import Schedule
from tasks.training.trained import metric_rows
from tasks.training.trials.findings import rate_rows

ANGLE = "angle_degrees"
SAME = 1e-9


def require_events(given: StageInput, told: PulsesResult, look: LookResult) -> None:
    """Each split has the files that were asked for, and the events and pulses that were counted in them."""
    events, rows = given.configuration(PulsesConfig).events, list(read_records(given.path / "records.parquet"))
    for split in SPLITS:
        facts = getattr(told, split)
        require_equal(f"the files of {split} are those that were asked for", facts.batches, events.batches(split))
        counted = split_facts(rows, split, events.max_events(split))
        require_equal(f"the events of {split} are those of the records of {given.path}", facts, counted)
    digest = records_digest(given.path / "records.parquet", ("batch_id",))
    require_equal(f"the digest of the records of {given.path}", told.records_digest, digest)
    require_equal("icecube-look read every event of train", look.events, told.train.events)


def require_overfit(given: StageInput, told: OverfitResult) -> None:
    """One batch of the size that was asked for was fitted as well as it must be."""
    batch, fit = given.configuration(OverfitConfig).batch, told.fit
    require_equal("one batch was fitted as asked for", (fit.examples, fit.steps), (batch.events, batch.steps))
    required = batch.max_ratio * told.trivial_degrees
    require_close("the angle that one batch must reach", told.required_degrees, required, SAME * required)
    require_limit("the network fits one batch", fit.after, required, " degrees")


def require_trial(what: str, given: StageInput, told: TrialResult, events: PulsesResult, trivial: float) -> None:
    """A trial is the one that was asked for, and ended as its metrics do."""
    config, rows = given.configuration(TrialConfig), metric_rows(given.run.metrics_file)
    schedule = Schedule(config.budget, events.train.events)
    validations = [[float(row["step"]), row[ANGLE]] for row in rows if ANGLE in row]
    last = rows[-1]["step"] if rows else 0
    for name, measured, required in (
        ("kind of training", told.trained, config.trained),
        ("rate", told.learning_rate, config.budget.learning_rate),
        ("warm-up", told.warmup_ratio, config.budget.warmup_ratio),
        ("seed", told.seed, config.seed),
        ("steps of the budget", told.steps_of_budget, schedule.total_steps),
        ("validations", told.validations, validations),
        ("last validation", told.validation_angle_degrees, validations[-1][1] if validations else None),
        ("end", told.ended, _ended(schedule, validations, trivial)),
    ):
        require_equal(f"the {name} of {what} is that of its configuration and metrics", measured, required)
    # what fails fails in the step after the last row, or some steps later: there is a row every ten
    failed, epochs = told.ended == "numerical_failure", [row for row in rows if "epoch" in row]
    follows = last <= told.step <= (schedule.total_steps if failed else last)
    require(follows, f"the step at which {what} ended is that of its metrics", told.step, f"{last}, its last row")
    whole = not failed and any(row["step"] == last for row in epochs)
    largest = max((row["gradient_norm_max"] for row in epochs), default=0.0)
    follows = told.gradient_norm_max == largest or (told.gradient_norm_max > largest and not whole)
    require(follows, f"the largest gradient of {what} is that of its metrics", told.gradient_norm_max, largest)


def _ended(schedule: Schedule, validations: list[list[float]], trivial: float) -> str:
    """The end of a training whose validations are these, [step, value]."""
    if not validations:
        return "numerical_failure"
    gate, patience, last = schedule.budget.not_learning, schedule.budget.patience_validations, validations[-1][0]
    best_step, best = min(validations, key=lambda one: one[1])
    early = patience is not None and sum(step > best_step for step, _ in validations) >= patience
    if gate and (last == gate.by_step or (early and last < gate.by_step)) and not best <= gate.max_ratio * trivial:
        return "not_learning"
    return "finished" if early or last == schedule.total_steps else "numerical_failure"


def require_distinct_trials(trials: Mapping[str, Mapping[str, TrialResult]]) -> None:
    """CheckFailed for two trials, by name and seed, with equal numbers: what one of them changes has not reached it.

    Trials without a validation are left out: two that fail in their first steps may well have the same few numbers.
    """
    numbers = {}
    for name, by_seed in trials.items():
        for seed, trial in by_seed.items():
            if trial.validations:
                what, last = f"{name} with seed {seed}", trial.validations[-1][1]
                require_equal(f"{what} is judged by its last validation", trial.validation_angle_degrees, last)
                numbers[what] = (trial.seed, trial.gradient_norm_max, *map(tuple, trial.validations))
    advice = "What one of them changes does not reach its training: look at the configuration of both"
    require_distinct("every trial has numbers of its own", numbers, "the same validations and gradients", advice)


def require_rates(given: StageInput, told: RatesResult, rates: list[float]) -> None:
    """There is a row for each of the study's `rates`, and it follows from the records."""
    require_equal("the table has a row for each rate", [row.rate for row in told.rows], rates)
    for row, again in zip(told.rows, rate_rows(given.path / "records.parquet", rates), strict=True):
        require_equal(f"the row of the rate {row.rate:g} follows from the records", row, again)


def require_training(given: StageInput, told: TrainResult, events: PulsesResult, look: LookResult) -> None:
    """The training is the one that was asked for, and says of itself what its metrics and its records do."""
    config, training, what = given.configuration(TrainConfig), told.training, "the training"
    budget = config.budget
    if config.rate_limits is not None:  # then the rate is the one that is recommended: asked elsewhere
        budget = budget.model_copy(update={"learning_rate": told.learning_rate})
    require_equal(f"the rate of {what} is that of its budget", told.learning_rate, budget.learning_rate)
    trivial = {CONSTANT: look.trivial.best_constant_degrees}
    require_trained(what, given.run.metrics_file, training, ANGLE, budget, events.train.events, trivial=trivial)
    file = given.path / "records.parquet"
    angles: Any = pq.read_table(file, columns=[ANGLE])[ANGLE].to_numpy()
    mean, median = told.mean_degrees, told.median_degrees
    require_close("the mean angle follows from the records", mean, float(angles.mean()), SAME * mean)
    require_close("the median angle follows from the records", median, float(np.median(angles)), SAME * median)
    require_equal("there is a record of each event of validation", len(angles), events.validation.events)
    require_equal("the digest of the records of the training", told.records_digest, records_digest(file, ("event_id",)))
    require_close(f"the mean angle of {what} is its best", mean, training[f"best_{ANGLE}"], AUDIT_TOLERANCE)
    advice, ours = "Its inputs were scaled otherwise than everything that was looked at", told.normaliser_digest
    require_equal(f"{what} took the normaliser of icecube-look", ours, look.normaliser_digest, advice)
