"""calorimeter-look: what the light is like, the one normaliser of all models, and what needs no learning."""

import math

import numpy as np

from tasks.calorimeter.showers import TARGETS
from tasks.calorimeter.stages import LookConfig, LookResult, Measures
from tasks.data.gate import require_inputs
from tasks.data.normaliser import Normaliser, Step
from tasks.data.statistics import column_statistics
from tasks.sensors.xenon import SENTINEL, Events
from tasks.stage.run import StageInput, StageRun

LIGHT, CENTRAL, AT_ONCE = "light_photons", 0.68, 1000
RECORDED = Step(name=LIGHT, offset=3.0, scale=4.08 / math.log(10), logarithm_of_plus=1000.0)
"""ln(1 + x / 1000) / 4.08."""


def look(run: StageRun, config: LookConfig, data: StageInput) -> LookResult:
    """Publishes `normaliser/`, of light and of what is to be found. CheckFailed where light is not fit to train on."""
    train, validation = Events.open(data, "train"), Events.open(data, "validation")
    parts = (train.light[first : first + AT_ONCE] for first in range(0, len(train), AT_ONCE))
    columns = column_statistics((light[light != SENTINEL][:, None] for light in parts), [LIGHT])
    columns += column_statistics([np.array(train.truth)], TARGETS)
    steps = Normaliser.measured(columns).steps
    normaliser = Normaliser(steps=[RECORDED, *steps[1:]] if config.scaling == "logarithm" else steps)
    require_inputs(columns, normaliser, config.max_absolute_z)
    with run.publish("normaliser") as folder:
        normaliser.save(folder)
    trivial = residuals(validation.truth - np.array([column.mean for column in columns[1:]], dtype=np.float64))
    return LookResult(columns=[column.as_json() for column in columns], trivial=trivial)


def normaliser_of(look: StageInput, raw: bool = False) -> Normaliser:
    """The published one; `raw`: with light as it is, which is another normaliser, with another digest."""
    steps = Normaliser.load(look.path / "normaliser").steps
    return Normaliser(steps=[*Normaliser.none([LIGHT]).steps, *steps[1:]] if raw else steps)


def residuals(errors: np.ndarray) -> Measures:
    """The central 68 % of |error| of each target, of errors [N, 4]."""
    return dict(zip(TARGETS, np.quantile(np.abs(errors), CENTRAL, axis=0).tolist(), strict=True))
