"""The events as icecube-pulses left or found them, opened by a later stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage import external
from storage.errors import BadInput
from tasks.icecube.configuration import Split
from tasks.icecube.events import EventFiles, read_geometry
from tasks.icecube.layout import files_of
from tasks.icecube.pulses import SPLITS, WRITTEN
from tasks.icecube.results import PulsesResult
from tasks.icecube.stages import ReadsEvents
from tasks.stage.run import StageInput


@dataclass(frozen=True)
class Data:
    """The two splits, and the places of the sensors by their ids, float32 [sensors, 3]."""

    train: EventFiles
    validation: EventFiles
    places: np.ndarray

    @classmethod
    def open(cls, events: StageInput, config: ReadsEvents) -> Data:
        """BadInput names a file that is not what icecube-pulses found sound."""
        found = PulsesResult.read(events)
        folder = Path(config.folder) if config.folder else events.path / WRITTEN
        if config.folder:
            _require_the_same(folder, found)
        splits = {name: _split(folder, name, found, config.open_files) for name in SPLITS}
        return cls(**splits, places=read_geometry(folder, found.files))


def _split(folder: Path, name: Split, found: PulsesResult, open_files: int) -> EventFiles:
    facts = getattr(found, name)
    skipped = [one for ids in facts.skipped.values() for one in ids]
    return EventFiles(folder, facts.batches, open_files, facts.events, found.files, skipped)


def _require_the_same(folder: Path, found: PulsesResult) -> None:
    """Digests are kept by path, size and time, so that only a file that changed since, or elsewhere, is read for it."""
    files = files_of(folder, [*found.train.batches, *found.validation.batches])
    if missing := [file for file in files if not file.is_file()]:
        raise BadInput(f"there is no file {missing[0]}, which icecube-pulses has read: put it back")
    now = external.file_manifest([str(file) for file in files])
    if changed := sorted(name for name, digest in found.files.items() if now.get(name) != digest):
        raise BadInput(
            f"{changed[0]} in {folder} is not the file any more that icecube-pulses has read ({len(changed)} such "
            "files): put it back, or start the study again, which looks through the files anew"
        )
