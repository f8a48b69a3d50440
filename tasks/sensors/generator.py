"""Generated showers: points of light in the xenon.

A sensor counts photons by the solid angle under which it is seen (Poisson), beside a steady glow and the noise of its
electronics. There is no scattering, no reflection and no pile-up.
"""

from collections.abc import Iterator

import numpy as np

from tasks.sensors.events import SENTINEL
from tasks.sensors.xenon import HALF_U, HALF_V, SENSORS, detector

PHOTONS_PER_MEV, GLOW, NOISE = 40_000.0, 8.0, 3.0
"""The last two in photons a sensor and event."""
MARGIN, DEPTHS = 7.5, (1.5, 16.0)
"""How far events stay from the walls across the depth, and how deep they are, in cm."""


def points_of_light(
    count: int, energies: tuple[float, float], dead_share: float, at_once: int, seed: int, stream: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Light in photons [N, S] and truth in cm and MeV [N, 4] of events, so many `at_once`.

    Energies in MeV are uniform between two; the same sensors are dead in all events of a seed, whatever the stream.
    """
    known, (u, v) = detector(), (HALF_U - MARGIN, HALF_V - MARGIN)
    dead = np.random.default_rng([seed, 0]).permutation(SENSORS)[: round(dead_share * SENSORS)]
    for first in range(0, count, at_once):
        random = np.random.default_rng([seed, stream, first])
        low, high = np.transpose([(-u, u), (-v, v), DEPTHS, energies])
        truth = random.uniform(low, high, (min(at_once, count - first), 4))
        light = NOISE * random.standard_normal((len(truth), SENSORS), dtype=np.float32)
        for row, (*place, energy) in enumerate(truth):
            away = np.array(place) - known.places
            of_sphere = known.areas * (away * known.normals).sum(1) / (4 * np.pi * (away**2).sum(1) ** 1.5)
            light[row] += random.poisson(energy * PHOTONS_PER_MEV * of_sphere + GLOW)
        light[:, dead] = SENTINEL
        yield light, truth.astype(np.float32)
