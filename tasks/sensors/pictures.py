"""Pictures on the map of the detector."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.spatial import KDTree

from tasks.findings.document import Figure
from tasks.findings.figures import maps
from tasks.sensors.networks import Physical
from tasks.sensors.xenon import HIGHS, LOWS, SENTINEL, Events, detector

ROWS, LEAST = 44, 0.1
"""Rows of the inner face that are shown of an event; what is told apart of a mean sensor."""
CELL = 3.0
"""The side of a cell of the opened box, in cm."""


def event_map(events: Events, records: Path, model: str) -> Figure:
    """Part of the inner face in the brightest of the first events: as it was, as a network saw it, and filled in.

    `records` have what each `model` filled in: event, sensor, photons, predicted.
    """
    rows = pq.read_table(
        records, filters=[("event", "<", 50), ("model", "==", model)]
    ).to_pydict()  # all may be too many
    event = int(np.bincount(rows["event"], rows["photons"]).argmax())
    true = np.array(events.light[event])
    true[true == SENTINEL] = np.nan
    panels = {"as it was": true, "as it was seen": true.copy(), "filled in": true.copy()}
    for number, sensor, value in zip(rows["event"], rows["sensor"], rows["predicted"], strict=True):
        if number == event:
            panels["as it was seen"][sensor], panels["filled in"][sensor] = np.nan, value
    cells = detector().faces["inner"].cells
    first = int(
        np.clip(np.nan_to_num(true[cells], nan=-np.inf).argmax() // cells.shape[1] - ROWS // 2, 0, len(cells) - ROWS)
    )
    inner = {name: np.log10(np.maximum(light[cells[first : first + ROWS]], 1)) for name, light in panels.items()}
    caption = (
        f"Event {event}, part of the inner face: the darker, the more light (logarithm); dead and hidden are empty."
    )
    return maps("event", caption, inner)


def saliency_map(models: Mapping[str, Path], seed: int, events: Events, at_most: int) -> Figure:
    """How much the place that is found depends on each sensor, by regressors of a seed, and by the first untrained."""
    networks = {"untrained": Physical.load(next(iter(models.values())), seed)}
    networks |= {name: Physical.load(model) for name, model in models.items()}
    light, panels = torch.from_numpy(np.array(events.light[:at_most])), {}
    dead = (light == SENTINEL).all(0).numpy()
    for name, network in networks.items():
        moved = np.where(dead, np.nan, network.moved_by_a_photon(light))
        panels[name] = np.log10((unfolded(moved) / np.nanmean(moved)).clip(min=LEAST))
    caption = (
        f"How far the place that is found moves for a photon more in a sensor, in the mean of {len(light)} events and "
        f"with seed {seed}: the darker, the more (logarithm; the palest: {LEAST:g} of the network's mean sensor, or "
        "less). The box is opened around its inner face, v upwards; the outer face lies to its right. Untrained is "
        f"{next(iter(models))} before its first step."
    )
    return maps("saliency", caption, panels)


def unfolded(values: np.ndarray) -> np.ndarray:
    """Values [S] on a picture of the box, opened around its inner face, and of the outer face to the right of it: u to
    the right, v upwards, NaN beside the faces.

    A cell shows the sensor nearest to its middle, of the inner face the mean of the nearest four; NaN is passed over,
    and so is a face with fewer than four others.
    """
    known, cells = detector(), np.rint((HIGHS - LOWS) / CELL).astype(int)
    (u, v, w), below, right = cells, cells[2] + 1, cells[2] + 1
    corners = {"top": (0, right), "upstream": (below, 0), "inner": (below, right), "downstream": (below, right + u + 1)}
    corners |= {"outer": (below, right + u + w + 2), "bottom": (below + v + 1, right)}
    picture = np.full((v + 2 * w + 2, 2 * u + 2 * w + 3), np.nan)
    for name, face in known.faces.items():
        live, axes = np.unique(face.cells[np.isfinite(values[face.cells])]), list(face.axes[:2])
        if len(live) < 4:
            continue
        middles = [LOWS[axis] + (np.arange(cells[axis]) + 0.5) * (HIGHS - LOWS)[axis] / cells[axis] for axis in axes]
        middles[0] = middles[0] if name == "bottom" else middles[0][::-1]
        middles[1] = middles[1][::-1] if name == "upstream" else middles[1]
        nearest = KDTree(known.places[live][:, axes]).query(
            np.stack(np.meshgrid(*middles, indexing="ij"), -1), [*range(1, 5 if name == "inner" else 2)]
        )[1]
        shown, (row, column) = values[live[nearest]].mean(-1), corners[name]
        picture[row : row + len(shown), column : column + shown.shape[1]] = shown
    return picture
