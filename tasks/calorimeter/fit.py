"""calorimeter-mae, calorimeter-inpaint and calorimeter-regress: one training each, and how it is judged."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import require
from tasks.calorimeter.look import normaliser_of, residuals
from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import FillConfig, FitResult, Measures, RegressConfig
from tasks.sensors.batches import Batches, fill_losses, target_losses
from tasks.sensors.events import Events
from tasks.sensors.filled import columns
from tasks.sensors.fitted import fitted, mean_of
from tasks.sensors.networks import Filler, Regressor
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

PRETRAINED, EVENTS_IN_A_PART = "calorimeter-mae", 50

Start = StageInput | None
Rows = Iterator[dict[str, Any]]


def regress(run: StageRun, config: RegressConfig, data: StageInput, look: StageInput, start: Start = None) -> FitResult:
    """Publishes `model/`. Records: by how much each target of each event of validation is missed."""
    normaliser, where = normaliser_of(look, raw=config.arm == "raw"), device(config.execution)
    batches = [Batches(Events.open(data, split), normaliser, where) for split in ("train", "validation")]
    torch.manual_seed(config.seed)
    network, losses = Regressor(config.network, len(TARGETS)), partial(target_losses, beta=config.loss_beta)
    trivial = {
        "predicting the mean": mean_of(losses(0 * of.truth, of) for _, of in batches[1].in_turn(EVENTS_IN_A_PART))
    }
    taken = fitted(run, config, batches, network, (start, PRETRAINED), losses, trivial)
    scales = torch.tensor([step.scale for step in normaliser.steps[1:]], dtype=torch.float64)

    @torch.no_grad()
    def rows(first: int) -> Rows:
        for indices, batch in batches[1].in_turn(
            config.execution.micro_batch_examples, first, first + EVENTS_IN_A_PART
        ):
            run.progress.touch()
            missed = (network(batch.seen) - batch.truth).double().cpu() * scales
            for event, values in zip(indices.tolist(), missed.tolist(), strict=True):
                yield {"event": event, **dict(zip(TARGETS, values, strict=True))}

    with run.watched(config.execution.stall_minutes):
        parts = run.each(range(0, len(batches[1].events), EVENTS_IN_A_PART), rows, "parts")
        run.merge_records(parts, ("event",))
    return FitResult(taken=taken)


def fill(run: StageRun, config: FillConfig, data: StageInput, look: StageInput, start: Start = None) -> FitResult:
    """Publishes `model/`. calorimeter-judge says what it is worth."""
    normaliser, where, ratio = normaliser_of(look), device(config.execution), config.filling.mask_ratio
    given = Batches(Events.open(data, "train"), normaliser, where, ratio, config.seed)
    judged = Batches(Events.open(data, "validation"), normaliser, where, ratio, config.mask_seed, "judged")
    torch.manual_seed(config.seed)
    network, losses = Filler(config.network), partial(fill_losses, beta=config.filling.loss_beta)
    simple = (losses(judged.light(of.neighbours()), of) for _, of in judged.in_turn(EVENTS_IN_A_PART))
    trivial, frozen = {"the neighbours' mean": mean_of(simple)}, config.arm == "frozen"
    return FitResult(taken=fitted(run, config, [given, judged], network, (start, PRETRAINED), losses, trivial, frozen))


def missed_by(folder: Path, events: int) -> Measures:
    """The measures of a regressor, by its records. CheckFailed unless each event is there once."""
    rows = in_order(columns(folder / "records.parquet"), events, f"the records in {folder}")
    return residuals(np.column_stack([rows[name] for name in TARGETS]))


def in_order(rows: dict[str, np.ndarray], events: int, what: str) -> dict[str, np.ndarray]:
    """The rows by column. CheckFailed unless each event is there once, in its place."""
    found = rows.get("event", np.array([]))
    finite = all(np.isfinite(column).all() for column in rows.values() if column.dtype.kind == "f")
    require(finite, f"{what} are finite", "one that is none", "numbers")
    require(np.array_equal(found, np.arange(events)), f"{what} are of each event once", f"{len(found)} rows", events)
    return rows
