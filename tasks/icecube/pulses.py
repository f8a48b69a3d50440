"""icecube-pulses: the events' files, written or found, looked through one by one before anything reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np

from storage.errors import BadInput
from storage.records import read_records
from tasks.data.splits import require_disjoint
from tasks.icecube.configuration import Generated, Split
from tasks.icecube.events import read_geometry, read_meta, read_pulses, require_batches, require_sound
from tasks.icecube.generator import write_events
from tasks.icecube.layout import META, batch_file
from tasks.icecube.results import PulsesResult, SplitFacts
from tasks.icecube.stages import PulsesConfig
from tasks.stage.disk import require_disk
from tasks.stage.run import StageRun

SPLITS: tuple[Split, ...] = get_args(Split)
BYTES_PER_EVENT = 1_100
"""Of a generated event on disk; measured."""
WRITTEN = "files"


def pulses(run: StageRun, config: PulsesConfig) -> PulsesResult:
    """Publishes `files/` where the study writes them. Records: a row for each file, written when it was found sound."""
    events = config.events
    folder = _written(run, events) if isinstance(events, Generated) else Path(events.folder)
    batches: dict[str, list[int]] = {split: events.batches(split) for split in SPLITS}
    require_disjoint(batches, "files")
    places = len(read_geometry(folder))
    everything = [batch_id for split in SPLITS for batch_id in batches[split]]
    meta = read_meta(folder, everything)
    require_batches(folder, meta, everything)
    numbers, ids = meta["batch_id"].to_numpy(), meta["event_id"].to_numpy()
    shared = np.intersect1d(*(ids[np.isin(numbers, batches[split])] for split in SPLITS)).tolist()
    require_disjoint(dict.fromkeys(SPLITS, shared), "events")
    _require_once(ids)

    keys = []
    for done, batch_id in enumerate(everything):
        run.progress.update(done, len(everything), "files", note="is each sound?")
        keys.append(f"batch-{batch_id:06d}")
        if run.records.has(keys[-1]):
            continue
        run.stop.check()
        found = read_pulses(folder, batch_id)
        of_file = meta.slice(*_rows(numbers, batch_id))
        require_sound(found, of_file, places, batch_file(folder, batch_id))
        split = next(name for name in SPLITS if batch_id in batches[name])
        row = {"batch_id": batch_id, "split": split, "events": len(of_file), "pulses": len(found.time)}
        run.records.write(keys[-1], [row])
    with run.publish_file("records.parquet") as file:
        digest = run.records.merge(keys, file, ("batch_id",))
    rows = list(read_records(run.directory / "records.parquet"))
    return PulsesResult(
        source=events.source,
        sensors=places,
        files=events.external_inputs().get("files", {}),
        records_digest=digest,
        **{split: _facts(rows, split, events.max_events(split)) for split in SPLITS},
    )


def _written(run: StageRun, events: Generated) -> Path:
    """The folder of the files that the study writes; a batch that an earlier attempt finished is not made again."""
    folder, total = run.directory / WRITTEN, events.train_events + events.validation_events
    run.outputs.append(WRITTEN)
    if (folder / META).exists():  # the last that is written
        return folder
    require_disk(run.directory, total * BYTES_PER_EVENT)
    folder.mkdir(exist_ok=True)
    for number, done in enumerate(write_events(folder, total, events.events_per_batch, events.data_seed), 1):
        run.progress.update(done, total, "events", note="written")
        if not run.records.has(f"written-{number:06d}"):  # a sign of progress for whoever counts attempts in vain
            run.records.write(f"written-{number:06d}", [{"events": done}])
        run.stop.check()
    return folder


def _require_once(ids: np.ndarray) -> None:
    """BadInput names an event that is there twice, in one file or in two."""
    known, counts = np.unique(ids, return_counts=True)
    if (twice := known[counts > 1]).size:
        raise BadInput(f"event {twice[0]} is there twice in {META} ({twice.size:,} such events): leave one of them out")


def _rows(numbers: np.ndarray, batch_id: int) -> tuple[int, int]:
    """Where the events of a file begin in a table that is sorted by file, and how many they are."""
    first, last = (int(np.searchsorted(numbers, batch_id, side=side)) for side in ("left", "right"))
    return first, last - first


def _facts(rows: list[dict[str, Any]], split: Split, max_events: int | None) -> SplitFacts:
    of_split = [row for row in rows if row["split"] == split]
    events = sum(row["events"] for row in of_split)
    return SplitFacts(
        batches=[row["batch_id"] for row in of_split],
        events=min(events, max_events or events),
        pulses=sum(row["pulses"] for row in of_split),
    )
