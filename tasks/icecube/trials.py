"""Trainings before the training: a table of learning rates, the gate that one batch can be fitted, and the trials."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tasks.icecube.configuration import Trained
from tasks.icecube.look import best_constant
from tasks.icecube.results import OverfitResult
from tasks.icecube.stages import OverfitConfig, RatesConfig, TrialConfig
from tasks.icecube.training import Prepared, judge, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.culprits import FOLDER
from tasks.training.order import as_stored
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import TrialEnd
from tasks.training.trials.short import fit_single_batch, require_fit, try_rate
from tasks.training.trials.short import trial as train_as_trial


def rates(run: StageRun, config: RatesConfig, events: StageInput, look: StageInput) -> dict[str, Any]:
    """icecube-rates: what learning rates do in a few steps. Records: one for each rate and seed, once it was tried."""
    table, prepared = config.table, Prepared.of(config, events, look, config.inputs)
    probe = spread_over(len(prepared.data.validation), table.probe_events, "rates.probe_events")
    trained = Trained(inputs=config.inputs, dropout=config.dropout)
    tries = {
        f"rate-{number}-seed-{seed}": (f"rate-{number}-seed-{seed}", rate, seed)
        for number, rate in enumerate(table.rates)
        for seed in table.seeds
    }

    def tried(which: tuple[str, float, int]) -> list[dict[str, Any]]:
        name, rate, seed = which
        budget = config.budget.model_copy(update={"learning_rate": rate})
        problem = prepared.problem(trained, budget, seed, judged=probe, touch=run.progress.touch)
        result = try_rate(problem, Schedule(budget, len(prepared.data.train)), seed, config.execution)
        return [{"name": name, "rate": rate, "seed": seed, **result.model_dump()}]

    with run.watched(config.execution.stall_minutes):
        run.merge_records(run.each(tries, tried, "tries", lambda which: f"rate {which[1]:g}"), ("name",))
    return {}


def overfit(run: StageRun, config: OverfitConfig, events: StageInput, look: StageInput) -> OverfitResult:
    """icecube-overfit: a gate of minutes before a training of hours. CheckFailed when one batch cannot be fitted."""
    prepared = Prepared.of(config, events, look, "normalised")
    files, at_once = prepared.data.train, config.execution.micro_batch_examples
    chosen = spread_over(len(files), config.batch.events, "overfit.events")
    batch = prepared.batches(files).held(chosen)
    problem = replace(
        prepared.problem(Trained(), config.budget, config.seed),
        batch=batch,
        evaluate=partial(judge, batches=batch, events=np.arange(len(chosen)), at_once=at_once),
        order=as_stored,
    )
    run.progress.update(0, 1, "batches", note="fits one batch")
    with run.watched(config.execution.stall_minutes):
        fit = fit_single_batch(problem, Schedule(config.budget, len(chosen)), config.seed, config.execution)
    trivial = best_constant(files.azimuth[chosen], files.zenith[chosen]).best_constant_degrees  # of these few events
    require_fit(fit, trivial, config.batch.max_ratio)
    return OverfitResult(
        before=fit.before, after=fit.after, gradient_norm_max=fit.gradient_norm_max, trivial_degrees=trivial
    )


def trial(run: StageRun, config: TrialConfig, events: StageInput, look: StageInput) -> TrialEnd:
    """icecube-trial: a training as the recorded study did it, with one change; how it ends is the result.

    Publishes what the audit asks: `model/` of the last step, with records where that is finite; else the failed step.
    """
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, config.budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(config.budget, len(prepared.data.train))
    end = train_as_trial(run, problem, schedule, config.seed, config.execution)
    if end.failure and (run.directory / FOLDER).exists():
        run.outputs.append(FOLDER)
    else:
        with run.watched(config.execution.stall_minutes):
            prepared.keep(run, problem.model.eval(), config.trained, finite=end.failure is None)
    if end.failure is None:
        return end
    named = [int(prepared.data.train.event_ids[index]) for index in end.failure.examples]
    return end.model_copy(update={"failure": end.failure.model_copy(update={"examples": named})})
