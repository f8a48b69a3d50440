"""Events of a detector that are fit to train on and to judge on, by what its light sensors can show."""

import hashlib
from collections import Counter

import numpy as np

from tasks.data.root_files import require_events
from tasks.sensors.configuration import Readings
from tasks.sensors.events import FOREIGN, SENTINEL
from tasks.sensors.xenon import HIGHS, LOWS

LEAST_LIVE, ROOM = 2, 1.0
"""Live sensors without which nothing can be hidden and filled in; how far places may lie outside of the box, as a
share of its size."""


def require_sound(file: str, first: int, light: np.ndarray, truth: np.ndarray, how: Readings) -> None:
    """Shows what is dead in `light` [N, S] as SENTINEL; BadInput names the file and the row of an event that no such
    detector shows. Light is in photons, `truth` [N, 4] in cm and MeV."""
    finite, whole = (np.isfinite(of).all(1) for of in (light, truth))
    light[(light == how.dead_photons) | (light >= FOREIGN)] = SENTINEL
    live, room, energy = light != SENTINEL, ROOM * (HIGHS - LOWS), truth[:, 3]
    low, high = np.where(live, light, 0).min(1), np.where(live, light, 0).max(1)
    far = ((truth[:, :3] < LOWS - room) | (truth[:, :3] > HIGHS + room)).any(1)
    wrong = {
        "light that is not finite": ~finite,
        f"light below {how.min_photons:g} photons, which is neither noise (showers.min_photons) nor what a dead sensor "
        f"shows (showers.dead_photons is {how.dead_photons:g})": low < how.min_photons,
        f"light above {how.max_photons:g} photons in a sensor (showers.max_photons)": high > how.max_photons,
        f"fewer than {LEAST_LIVE} sensors that are alive": live.sum(1) < LEAST_LIVE,
        "no finite place, or no energy": ~whole | ~(energy > 0),
        f"an energy below {how.min_energy_mev:g} MeV (showers.min_energy_mev), as if it were in GeV: energyTruth is in "
        "MeV": energy < how.min_energy_mev,
        f"an energy above {how.max_energy_mev:g} MeV (showers.max_energy_mev), as if it were in keV: energyTruth is in "
        "MeV": energy > how.max_energy_mev,
        "a place far outside of the detector, as if it were in mm: uvwTruth is in cm": far,
    }
    require_events(file, first, wrong)


class Told:
    """Events that were read for one split, so that none of them is in another one too. `repeated` counts by split those
    whose light was in it before."""

    def __init__(self) -> None:
        self._split_of: dict[bytes, str] = {}
        self.repeated = Counter[str]()

    def require_new(self, split: str, file: str, first: int, light: np.ndarray) -> None:
        """BadInput names the file and the row of an event whose light was told for another split."""
        digests = [hashlib.blake2b(event.tobytes(), digest_size=16).digest() for event in light]
        if twice := len(digests) - len({*digests} - self._split_of.keys()):
            self.repeated[split] += twice
        again = np.array([self._split_of.setdefault(digest, split) != split for digest in digests])
        require_events(file, first, {"the same light as one of the other split": again})
