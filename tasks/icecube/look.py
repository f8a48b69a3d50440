"""icecube-look: what the inputs are like, how they are normalised, and what needs no learning at all."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import minimize

from tasks.data.gate import require_inputs
from tasks.data.normaliser import Normaliser, Step
from tasks.data.statistics import column_statistics
from tasks.icecube.batches import FEATURES, angle, from_angles, raw_features
from tasks.icecube.pulses import Data
from tasks.icecube.results import Constant, LookResult
from tasks.icecube.stages import LookConfig
from tasks.stage.run import StageInput, StageRun

FIXED = Normaliser(
    steps=[
        Step(name="time", offset=1e4, scale=3e4),
        Step(name="charge", offset=0.0, scale=3.0, logarithm_of_plus=1e-8),
        Step(name="sensor_id", offset=0.0, scale=5160.0),
        Step(name="auxiliary", offset=0.0, scale=1.0),
        *(Step(name=axis, offset=0.0, scale=500.0) for axis in "xyz"),
    ]
)
"""The numbers that the recorded study adopted at last."""
NORMALISER = "normaliser"
"""The folder in which every later stage finds it."""
EVENTS_AT_ONCE = 1_000
GRID = 2_000
"""Directions, evenly over the sphere, of which the best is where the search for the best constant one begins."""


def look(run: StageRun, config: LookConfig, events: StageInput) -> LookResult:
    """Publishes `normaliser/`, which every later stage reads. CheckFailed names inputs that are not fit to train on."""
    data = Data.open(events, config)
    columns = column_statistics(_chunks(run, data, config.pulses_per_event), FEATURES)
    require_inputs(columns, FIXED, config.max_absolute_z)
    with run.publish(NORMALISER) as folder:
        FIXED.save(folder)
    return LookResult(columns=columns, trivial=best_constant(data.validation.azimuth, data.validation.zenith))


def _chunks(run: StageRun, data: Data, limit: int) -> Iterator[np.ndarray]:
    """The raw features of all events of train, of many at once: a chunk has a cost of its own."""
    for first in range(0, len(data.train), EVENTS_AT_ONCE):
        run.step(first, len(data.train), "events", note="statistics of the inputs")
        some = range(first, min(first + EVENTS_AT_ONCE, len(data.train)))
        yield np.concatenate([raw_features(data.train.pulses_of(event), data.places, limit) for event in some])


def best_constant(azimuth: np.ndarray, zenith: np.ndarray) -> Constant:
    """The direction with the smallest mean angle to these [events] in radians: the best of a grid, then refined."""
    truth = from_angles(*(torch.from_numpy(np.array(values, dtype=np.float64)) for values in (azimuth, zenith)))

    def mean_angle(place: np.ndarray) -> float:
        return float(angle(from_angles(*torch.from_numpy(place)), truth).mean())

    turns, heights = math.pi * (1 + 5**0.5) * np.arange(GRID), 1 - 2 * (np.arange(GRID) + 0.5) / GRID
    grid = np.stack([turns % (2 * math.pi), np.arccos(heights)], axis=1)  # a Fibonacci lattice
    sample = truth if len(truth) <= GRID else truth[:: len(truth) // GRID]
    means = angle(from_angles(*torch.from_numpy(grid).T)[:, None], sample).mean(1)
    optimum = minimize(
        mean_angle, grid[int(means.argmin())], method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9}
    )
    return Constant(
        azimuth_degrees=math.degrees(optimum.x[0]) % 360,
        zenith_degrees=math.degrees(optimum.x[1]),
        best_constant_degrees=math.degrees(optimum.fun),
    )
