"""calorimeter-showers: events as memory-mapped arrays, generated or read from ROOT files, and whether they are sound.

A generated shower is a point of light in the xenon. A sensor counts photons by the solid angle under which it is seen
(Poisson), beside a steady glow and the noise of its electronics. There is no scattering, no reflection and no pile-up.

ROOT files are read in parts by uproot, which is an extra. Whatever cannot be used is BadInput, with the file and the
row, before any work is spent on it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from storage import external
from storage.errors import MESSAGE_SHOWN, BadInput, cut, install
from tasks.calorimeter.stages import Generated, RootFiles, ShowersConfig, ShowersResult
from tasks.sensors.configuration import Readings
from tasks.sensors.xenon import FOLDER, FOREIGN, HALF_U, HALF_V, HIGHS, LOWS, SENSORS, SENTINEL, detector
from tasks.stage.run import StageRun

TREES = {"TTree", "TNtuple", "TNtupleD", "ROOT::RNTuple"}
Branches = tuple[str, int, dict[str, np.ndarray]]
"""The file, the number of the first event, and of each branch its numbers, fp32 [events, numbers]."""
TARGETS = ("u_cm", "v_cm", "w_cm", "energy_mev")
AT_ONCE = 500
BRANCHES = {"npho": SENSORS, "uvwTruth": 3, "energyTruth": 1}

Part = tuple[str, int, np.ndarray, np.ndarray]
"""Where events come from, the number of the first, light and truth."""
LEAST_LIVE, ROOM = 2, 1.0
"""Live sensors without which nothing can be hidden and filled in; how far places may lie outside of the box, as a
share of its size."""
PHOTONS_PER_MEV, GLOW, NOISE = 40_000.0, 8.0, 3.0
"""The last two in photons a sensor and event."""
MARGIN, DEPTHS = 7.5, (1.5, 16.0)
"""How far events stay from the walls across the depth, and how deep they are, in cm."""


def showers(run: StageRun, config: ShowersConfig) -> ShowersResult:
    """Publishes `showers/`. BadInput names the file and the row of an event that is not sound."""
    asked, events, live = config.showers, {"train": 0, "validation": 0}, list[int]()
    known = Told()
    with run.publish(FOLDER) as folder:
        for split in events:
            parts = generated(asked, split, config.seed) if isinstance(asked, Generated) else read(asked, split)
            with (folder / f"{split}.light").open("wb") as light, (folder / f"{split}.truth").open("wb") as truth:
                for source, first, shown, told in parts:
                    run.stop.check()
                    require_sound(source, first, shown, told, asked)
                    known.require_new(split, source, first, shown)
                    light.write(shown.tobytes())
                    truth.write(told.tobytes())
                    alive = (shown != SENTINEL).sum(1)
                    live += [int(alive.min()), int(alive.max())]
                    events[split] += len(alive)
                    run.progress.update(events[split], 0, "events", note=split)
    for split, count in known.repeated.items():
        run.log.warning(
            "%d of %d events of %s have the light of one before them: they count twice", count, events[split], split
        )
    return ShowersResult(events=events, live_sensors=[min(live), max(live)], repeated=dict(known.repeated))


def generated(asked: Generated, split: str, seed: int) -> Iterator[Part]:
    """The events of a split. Energies in MeV are uniform; the same sensors are dead in all events of both."""
    count, stream = (asked.train_events, 1) if split == "train" else (asked.validation_events, 2)
    known, (u, v) = detector(), (HALF_U - MARGIN, HALF_V - MARGIN)
    dead = np.random.default_rng([seed, 0]).permutation(SENSORS)[: round(asked.dead_share * SENSORS)]
    low, high = np.transpose([(-u, u), (-v, v), DEPTHS, (asked.least_energy_mev, asked.most_energy_mev)])
    for first in range(0, count, AT_ONCE):
        random = np.random.default_rng([seed, stream, first])
        truth = random.uniform(low, high, (min(AT_ONCE, count - first), 4))
        light = NOISE * random.standard_normal((len(truth), SENSORS), dtype=np.float32)
        for row, (*place, energy) in enumerate(truth):
            away = np.array(place) - known.places
            of_sphere = known.areas * (away * known.normals).sum(1) / (4 * np.pi * (away**2).sum(1) ** 1.5)
            light[row] += random.poisson(energy * PHOTONS_PER_MEV * of_sphere + GLOW)
        light[:, dead] = SENTINEL
        yield f"generated showers, {split}", first, light, truth.astype(np.float32)


def read(asked: RootFiles, split: str) -> Iterator[Part]:
    """The events of ROOT files, in the order of the files."""
    digests = asked.external_inputs()[split]
    for file, first, part in read_trees(getattr(asked, split), digests, asked.tree, BRANCHES, AT_ONCE, "showers.tree"):
        light, place, energy = part.values()
        yield file, first, light, np.concatenate([place, energy], axis=1)


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


def read_trees(
    files: Sequence[str],
    digests: Mapping[str, str],
    tree: str,
    branches: Mapping[str, int],
    at_once: int,
    key: str = "tree",
) -> Iterator[Branches]:
    """The events of the files, one after the other; `branches` says how many numbers each event has in each.

    `digests` are the sha256 of the files by their names, as the fingerprint has them. BadInput names the trees or the
    branches that are there, and `key`, which sets the tree, where one is missing.
    """
    try:
        import uproot
    except ImportError:
        raise BadInput(f"ROOT files are read by uproot, which is not installed: {install('root')}") from None
    for called, path in external.local_files(*files):
        name = str(path)
        with external.opened(path, digests[called]) as opened:
            with _refused(f"{name} has no tree {tree!r}, or is no ROOT file"):
                whole = uproot.open(opened)
                trees = {of for of, kind in whole.classnames(cycle=False).items() if kind in TREES}
                given = whole[tree] if tree.partition(";")[0].strip("/") in trees else None
                there, events = ({*given.keys()}, given.num_entries) if given is not None else (set(), 0)
            if given is None:
                shown = cut(", ".join(sorted(trees)), MESSAGE_SHOWN)
                has = f"its trees are {shown}: set {key} to one" if trees else "it has none"
                raise BadInput(f"{name} has no tree {tree!r}: {has}")
            if missing := sorted({*branches} - there):
                has = cut(", ".join(sorted(there)), MESSAGE_SHOWN)
                raise BadInput(f"{name}: the tree {tree} has no branch {', '.join(missing)}, but {has}. {key} names it")
            if not events:
                raise BadInput(f"{name}: the tree {tree} has no events")
            first, several = 0, given.iterate([*branches], step_size=at_once, library="np")
            while first < events:
                with _refused(f"{name}: the events from row {first:,} on cannot be read"):
                    arrays = next(several)
                part = {branch: _numbers(name, branch, arrays[branch], of) for branch, of in branches.items()}
                yield name, first, part
                first += len(next(iter(part.values())))


@contextmanager
def _refused(fault: str) -> Iterator[None]:
    """BadInput for any error of uproot, which has none of its own for a file that is damaged or no ROOT file."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise BadInput(f"{fault} ({str(error).strip().partition(chr(10))[0]})") from None


def require_events(file: str, first: int, wrong: Mapping[str, np.ndarray]) -> None:
    """BadInput names the first event of a part with something that is `wrong`: what it has -> bool [events]."""
    for what, events in wrong.items():
        if events.any():
            row = first + int(events.argmax())
            raise BadInput(f"{file}: the event in row {row:,} has {what}: repair it, or leave it out")


def _numbers(file: str, branch: str, values: np.ndarray, required: int) -> np.ndarray:
    if values.dtype.kind not in "biuf" or values[0].size != required:
        raise BadInput(f"{file}: the branch {branch} has not {required:,} numbers in each event")
    return values.reshape(len(values), required).astype(np.float32)
