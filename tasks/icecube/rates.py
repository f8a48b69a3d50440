"""icecube-rates: what learning rates do in a few steps, tried with several seeds."""

from __future__ import annotations

import numpy as np

from tasks.icecube.configuration import Trained
from tasks.icecube.rate_records import rate_rows
from tasks.icecube.results import RatesResult
from tasks.icecube.stages import RatesConfig
from tasks.icecube.training import Prepared, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.findings import Tried
from tasks.training.rates import try_rate
from tasks.training.schedule import Schedule

KEY_COLUMNS = ("name",)


def rates(run: StageRun, config: RatesConfig, events: StageInput, look: StageInput) -> RatesResult:
    """Records: one for each rate and seed, as soon as it was tried."""
    table, prepared = config.table, Prepared.of(config, events, look, config.inputs)
    probe = spread_over(len(prepared.data.validation), table.probe_events, "rates.probe_events")
    tries = {
        f"rate-{number}-seed-{seed}": (rate, seed) for number, rate in enumerate(table.rates) for seed in table.seeds
    }
    with run.watched(config.execution.stall_minutes):
        for done, (name, (rate, seed)) in enumerate(tries.items()):
            run.progress.update(done, len(tries), "tries", note=f"rate {rate:g}")
            if run.records.has(name):
                continue
            run.stop.check()
            found = _tried(run, config, prepared, probe, rate, seed)
            run.records.write(name, [{"name": name, "rate": rate, "seed": seed, **found.model_dump()}])
    with run.publish_file("records.parquet") as file:
        digest = run.records.merge(list(tries), file, KEY_COLUMNS)
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
