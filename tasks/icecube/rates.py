"""icecube-rates: what learning rates do in a few steps, tried with several seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.icecube.configuration import Trained
from tasks.icecube.rate_records import rate_rows
from tasks.icecube.results import RatesResult
from tasks.icecube.stages import RatesConfig
from tasks.icecube.training import Prepared, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import Tried
from tasks.training.trials.rates import try_rate

KEY_COLUMNS = ("name",)


def rates(run: StageRun, config: RatesConfig, events: StageInput, look: StageInput) -> RatesResult:
    """Records: one for each rate and seed, as soon as it was tried."""
    table, prepared = config.table, Prepared.of(config, events, look, config.inputs)
    probe = spread_over(len(prepared.data.validation), table.probe_events, "rates.probe_events")
    tries = {
        (name := f"rate-{number}-seed-{seed}"): (name, rate, seed)
        for number, rate in enumerate(table.rates)
        for seed in table.seeds
    }

    def tried(one: tuple[str, float, int]) -> list[dict[str, Any]]:
        name, rate, seed = one
        found = _tried(run, config, prepared, probe, rate, seed)
        return [{"name": name, "rate": rate, "seed": seed, **found.model_dump()}]

    with run.watched(config.execution.stall_minutes):
        keys = run.each(tries, tried, "tries", lambda one: f"rate {one[1]:g}")
    digest = run.merge_records(keys, KEY_COLUMNS)
    return RatesResult(
        inputs=config.inputs,
        steps=table.steps,
        probe_events=len(probe),
        rows=rate_rows(run.directory, table.rates),
        records_digest=digest,
    )


def _tried(run: StageRun, config: RatesConfig, prepared: Prepared, probe: np.ndarray, rate: float, seed: int) -> Tried:
    budget = config.budget.model_copy(update={"learning_rate": rate})
    trained = Trained(inputs=config.inputs, dropout=config.dropout)
    problem = prepared.problem(trained, budget, seed, judged=probe, touch=run.progress.touch)
    return try_rate(problem, Schedule(budget, len(prepared.data.train)), seed, config.execution)
