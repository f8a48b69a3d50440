"""calorimeter-showers: events as memory-mapped arrays, generated or read from ROOT files."""

from collections.abc import Iterator

import numpy as np

from tasks.calorimeter.stages import ShowersConfig, ShowersResult
from tasks.calorimeter.study import Generated, RootFiles
from tasks.data.root_files import read_trees
from tasks.sensors.events import FOLDER, SENTINEL
from tasks.sensors.generator import points_of_light
from tasks.sensors.sound import Told, require_sound
from tasks.sensors.xenon import SENSORS
from tasks.stage.run import StageRun

TARGETS = ("u_cm", "v_cm", "w_cm", "energy_mev")
AT_ONCE = 500
BRANCHES = {"npho": SENSORS, "uvwTruth": 3, "energyTruth": 1}

Part = tuple[str, int, np.ndarray, np.ndarray]
"""Where events come from, the number of the first, light and truth."""


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
    """The events of a split; the same sensors are dead in both."""
    count, stream = (asked.train_events, 1) if split == "train" else (asked.validation_events, 2)
    energies = (asked.least_energy_mev, asked.most_energy_mev)
    parts = points_of_light(count, energies, asked.dead_share, AT_ONCE, seed, stream)
    return ((f"generated showers, {split}", AT_ONCE * at, *part) for at, part in enumerate(parts))


def read(asked: RootFiles, split: str) -> Iterator[Part]:
    """The events of ROOT files, in the order of the files."""
    digests = asked.external_inputs()[split]
    for file, first, part in read_trees(getattr(asked, split), digests, asked.tree, BRANCHES, AT_ONCE, "showers.tree"):
        light, place, energy = part.values()
        yield file, first, light, np.concatenate([place, energy], axis=1)
