"""calorimeter-judge: by how much all networks that fill in miss hidden sensors, event by event; it trains nothing."""

from collections.abc import Callable
from functools import partial

from tasks.calorimeter.stages import FillConfig, JudgeConfig
from tasks.sensors.events import Events
from tasks.sensors.filled import Filled, Rows, columns, mean_errors
from tasks.stage.numerics import device
from tasks.stage.preflight import require_disk
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageInput, StageRun

EVENTS_IN_A_PART, KEPT_BYTES, SORTED_BYTES = 50, 54, 26
"""A row of a prediction takes 27 bytes in its part and 25 merged; so many more while they are sorted. Measured."""
PREDICTIONS, KEY, OF_SENSOR = "predictions.parquet", ("model", "event"), ("model", "event", "sensor")


def judge(run: StageRun, config: JudgeConfig, data: StageInput, **fits: StageInput) -> dict[str, float]:
    """Records: the errors in every event of validation by each network, summed over its bright and its dim sensors.
    Publishes `predictions.parquet`, each hidden sensor of the first `predicted_events`."""
    events, where, at_once = (
        Events.open(data, "validation"),
        device(config.execution),
        config.execution.micro_batch_examples,
    )
    kept = min(len(events), config.predicted_events or len(events))
    asked = {role: given.configuration(FillConfig) for role, given in fits.items()}
    live = int((events.light[0] >= 0).sum())
    rows = int(sum(kept * live * of.filling.mask_ratio for of in asked.values()))
    require_disk(run.directory, rows * (KEPT_BYTES + SORTED_BYTES))
    size = (
        f"{kept:,} of {len(events):,} events (predicted_events), about {rows:,} rows, {rows * KEPT_BYTES / 1e6:.1f} MB"
    )
    run.log.info("keeps the predictions of %s", size, extra=FOR_THE_TERMINAL)
    keys: dict[tuple[str, ...], list[str]] = {KEY: [], OF_SENSOR: []}
    for role, given in fits.items():
        filled = Filled.load(given, events, asked[role].filling, asked[role].mask_seed, at_once, where)
        errors = partial(filled.errors, bright_photons=config.bright_photons)
        for key, made, end in ((KEY, errors, len(events)), (OF_SENSOR, filled.sensors, kept)):
            parts = partial(_rows, run, role, made, end)
            keys[key] += run.each(range(0, end, EVENTS_IN_A_PART), parts, "parts", role, f"{role}-{len(key)}-".lower())
    with run.watched(config.execution.stall_minutes), run.publish_file(PREDICTIONS) as file:
        run.records.merge(keys[OF_SENSOR], file, OF_SENSOR)
    run.merge_records(keys[KEY], KEY)
    for role, of in asked.items():  # refused here already where no bright sensor is hidden
        mean_errors(columns(run.directory / "records.parquet", model=role), of.filling.mask_ratio)
    return {}


def _rows(run: StageRun, role: str, made: Callable[[int, int], Rows], end: int, first: int) -> Rows:
    for row in made(first, min(first + EVENTS_IN_A_PART, end)):
        run.progress.touch()
        yield {"model": role, **row}
