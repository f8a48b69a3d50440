"""icecube-overfit: whether the network can fit one batch; a gate of minutes before a training of hours."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tasks.icecube.configuration import Trained
from tasks.icecube.look import best_constant
from tasks.icecube.results import OverfitResult
from tasks.icecube.stages import OverfitConfig
from tasks.icecube.training import Prepared, judge, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.order import as_stored
from tasks.training.schedule import Schedule
from tasks.training.trials.single_batch import fit_single_batch, require_fit


def overfit(run: StageRun, config: OverfitConfig, events: StageInput, look: StageInput) -> OverfitResult:
    """CheckFailed when the network cannot fit its batch."""
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
        fit=fit,
        trivial_degrees=trivial,
        required_degrees=config.batch.max_ratio * trivial,
    )
