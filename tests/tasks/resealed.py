"""What a report reads, taken from a study that really ran, edited, and sealed again with real markers.

`contents` gives every stage's result, records and metrics as plain values to change; `written` puts them on disk under
markers that hold: what is then refused is refused for what it says, not for its digest.
"""

import fnmatch
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.dag.walk import Handle
from storage import durable, markers
from storage.errors import CheckFailed
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.stage.run import StageInput
from tests.tasks.smoke import Smoke
from tests.tasks.tiny import stage_run

Stages = dict[str, dict[str, Any]]
"""Role in the report -> {"result", "rows", "metrics", "described"}; what has neither rows nor metrics lacks the key."""
Change = Callable[[str, Path], None]


def unchanged(_role: str, _path: Path) -> None:
    pass


Edit = Callable[[Stages], None]


def nothing(stages: Stages) -> None:
    pass


def edited(roles: str, changes: Mapping[str, Any]) -> Edit:
    """Other values in the results of all stages whose role is like `roles`, such as `trial-*`.

    A key leads to a value, as `training.validations.0.step`; a value that can be called is given the one of before.
    """

    def edit(stages: Stages) -> None:
        for role in fnmatch.filter(stages, roles):
            for path, value in changes.items():
                place: Any = stages[role]["result"]
                *way, last = (int(name) if name.lstrip("-").isdecimal() else name for name in path.split("."))
                for name in way:
                    place = place[name]
                place[last] = value(place[last]) if callable(value) else value

    return edit


audited_nothing = edited("audit", {"kinds": []})
differs_too_much = edited("audit", {"kinds.0.largest_difference": 7.0})
AUDIT: list[tuple[Edit, str]] = [
    (audited_nothing, "computed numbers of every kind again: measured []"),
    (differs_too_much, "the largest difference of the audit in"),
]
"""What the report of any study refuses of its audit."""


def configured_otherwise(role: str, path: Path) -> None:
    """Another configuration of the first training in `stage.json`."""
    if role in ("as-found-1", "none-0"):
        described = durable.read_json(path / "stage.json")
        described["configuration"]["budget"]["learning_rate"] = 0.5
        durable.write_json(path / "stage.json", described)


def contents(inputs: Mapping[str, Handle]) -> Stages:
    found: Stages = {}
    for role, handle in inputs.items():
        run = handle.run
        values: dict[str, Any] = {
            "result": durable.read_json(run.result_file),
            "described": durable.read_json(run.stage_file),
        }
        if (run.path / "records.parquet").exists():
            values["rows"] = pq.read_table(run.path / "records.parquet").to_pylist()
        if run.metrics_file.exists():
            values["metrics"] = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
        found[role] = values
    return found


def written(
    inputs: Mapping[str, Handle], folder: Path, stages: Stages, change: Change = unchanged
) -> dict[str, StageInput]:
    """Role -> finished stage, below `folder`/runs, as `stages` says and sealed again.

    `change` is given the role and the run directory of each before that, to edit other files.
    """
    found = {}
    for role, values in stages.items():
        theirs = inputs[role].run
        run = RunDirectory(folder / "runs", theirs.study, theirs.stage, theirs.fingerprint)
        shutil.copytree(theirs.path, run.path, ignore=shutil.ignore_patterns("checkpoints", "locks", "records"))
        durable.write_json(run.stage_file, values["described"])
        durable.write_json(run.result_file, values["result"])
        if "rows" in values:
            (run.path / "records.parquet").unlink()
            pq.write_table(pa.Table.from_pylist(values["rows"]), run.path / "records.parquet")
        if "metrics" in values:
            run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in values["metrics"]))
        change(role, run.path)
        found[role] = StageInput(run, seal(run.path))
    return found


def seal(path: Path) -> str:
    """A marker that holds, for what now lies in a run directory; returns the digest of its outputs."""
    about = durable.read_json(path / "stage.json")
    run = RunDirectory(path.parents[2], about["study"], about["stage"], about["fingerprint"])
    listed = durable.read_json(run.marker_file)
    run.marker_file.unlink()
    lock = acquire(run.path / "locks")
    marker = markers.write(run, sorted({name.split("/")[0] for name in listed["outputs"]}), {}, lock)
    lock.release()
    return marker.outputs_digest


def asked_again(stage: str, smoke: Smoke, folder: Path, edit: Edit, change: Change = unchanged) -> None:
    """The audit or the report of a smoke study that was edited: raises CheckFailed where that is refused."""
    handles = smoke.finished().handles
    stages = contents(handles[f"{smoke.page.name}-report"].inputs)
    edit(stages)
    handle = handles[f"{smoke.page.name}-{stage}"]
    given = written(handles[f"{smoke.page.name}-report"].inputs, folder, stages, change)
    run = stage_run(folder / stage)
    run.run = replace(run.run, root=folder / "runs")  # runs are named relative to their own root
    handle.stage.function()(run, handle.config, **{role: given[role] for role in handle.inputs})


def refused(stage: str, smoke: Smoke, folder: Path, edit: Edit, change: Change = unchanged) -> str:
    """What the audit or the report says of a smoke study that was edited."""
    with pytest.raises(CheckFailed) as found:
        asked_again(stage, smoke, folder, edit, change)
    assert "measured" in str(found.value) and "required" in str(found.value)
    return str(found.value)
