"""Muons of another telescope (KM3NeT's simulation), in Kaggle's layout: 2.2 million hits that no code of ours made.

`pip install --no-deps km3net-testdata==0.4.31 h5py` brings them (79 MB, MIT). The file holds no places of sensors, so
these are made up here, and no direction is learned: it is a test of reading, statistics and gate.
"""

import csv
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.icecube.events import BATCHES, EVENTS, GEOMETRY, META, PULSES, batch_file
from tasks.icecube.pulses import splits_of
from tests.tasks.icecube.tiny import run_until, smoke

TRAIN, LIMIT = 400, 100_000
"""Events of the first file, and more pulses than an event has."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (find_spec("km3net_testdata") and find_spec("h5py")),
        reason="needs muons of KM3NeT: pip install --no-deps km3net-testdata==0.4.31 h5py",
    ),
]


def muons() -> dict[str, np.ndarray]:
    """Columns of the hits, sorted by event and time, and the directions from which the events came, [events, 3]."""
    import h5py
    import km3net_testdata

    with h5py.File(Path(km3net_testdata.__file__).parent / "data" / "hdf5" / "atmospheric_muons_sample.h5") as file:
        hits = {name: file["hits"][name][:] for name in ("group_id", "time", "dom_id", "tot", "triggered")}
        tracks = file["mc_tracks"][:]
    order = np.lexsort((hits["time"], hits["group_id"]))
    first = np.unique(tracks["group_id"], return_index=True)[1]
    towards = np.stack([tracks[f"dir_{axis}"][first] for axis in "xyz"], axis=1)
    return {name: values[order] for name, values in hits.items()} | {"from": -towards}


def written(folder: Path, found: dict[str, np.ndarray]) -> None:
    """The hits as files 1 (train) and 2 (validation) of the layout."""
    (folder / BATCHES).mkdir(parents=True)
    doms, sensor = np.unique(found["dom_id"], return_inverse=True)
    with (folder / GEOMETRY).open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["sensor_id", "x", "y", "z"])
        rows.writerows([number, number % 18, number // 18, number] for number in range(len(doms)))
    meta = []
    for batch_id, (low, high) in enumerate([(0, TRAIN), (TRAIN, 500)], 1):
        events = np.unique(found["group_id"])[low:high]
        here = np.isin(found["group_id"], events)
        columns = [sensor[here], found["time"][here], found["tot"][here], found["triggered"][here] == 0]
        columns = [values.astype(field.type.to_pandas_dtype()) for values, field in zip(columns, PULSES, strict=False)]
        pq.write_table(pa.table([*columns, found["group_id"][here]], schema=PULSES), batch_file(folder, batch_id))
        ends = np.cumsum(np.unique(found["group_id"][here], return_counts=True)[1])
        of = found["from"][low:high]
        azimuth, zenith = np.arctan2(of[:, 1], of[:, 0]) % (2 * np.pi), np.arccos(of[:, 2].clip(-1, 1))
        starts = np.append(0, ends[:-1])
        meta.append(pa.table([[batch_id] * len(of), events, starts, ends - 1, azimuth, zenith], schema=EVENTS))
    pq.write_table(pa.concat_tables(meta), folder / META)


def test_every_hit_is_read_its_statistics_are_right_and_the_gate_names_what_does_not_fit(tmp_path: Path):
    found = muons()
    written(tmp_path / "files", found)
    events = (
        f"events={{source: files, folder: {tmp_path / 'files'}, train: {{first_batch: 1, last_batch: 1}}, "
        "validation: {first_batch: 2, last_batch: 2}}"
    )
    study = smoke(events, f"pulses_per_event={LIMIT}", "limits.max_absolute_z=1e9")
    handles = run_until("icecube-look", tmp_path / "runs", study)
    pulses, look = (handles[name] for name in ("icecube-pulses", "icecube-look"))
    assert pulses.finished and look.finished, (pulses.outcome, look.outcome)
    facts = splits_of(pulses.as_input())
    assert facts["train"].pulses + facts["validation"].pulses == len(found["time"]) == 2_228_941
    of_train = found["group_id"] <= np.unique(found["group_id"])[TRAIN - 1]
    columns = {column["name"]: column for column in look.as_input().result["columns"]}
    for name, key in (("time", "time"), ("charge", "tot")):
        values = found[key][of_train].astype(np.int64).astype(np.float32).astype(np.float64)
        assert columns[name]["count"] == len(values)
        assert columns[name]["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert columns[name]["deviation"] == pytest.approx(values.std(ddof=1), rel=1e-9)
        assert (columns[name]["minimum"], columns[name]["maximum"]) == (values.min(), values.max())
    trivial = look.as_input().result["trivial"]["best_constant_degrees"]
    assert trivial < 60, "atmospheric muons come from above: one constant direction is not far from any"

    refused = run_until("icecube-look", tmp_path / "runs", smoke(events))["icecube-look"]
    assert refused.outcome and refused.outcome.end_state == "check_failed" and "time: " in refused.outcome.text
