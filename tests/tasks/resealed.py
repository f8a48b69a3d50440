"""What a report reads, taken from a study that really ran, edited, and sealed again with real markers.

`contents` gives every stage's result, records and metrics as plain values to change; `written` puts them on disk under
markers that hold: what is then refused is refused for what it says, not for its digest.
"""

from __future__ import annotations

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


def nothing(stages: Stages) -> None:
    pass


def audited_nothing(stages: Stages) -> None:
    stages["audit"]["result"]["numbers"] = {}


def differs_too_much(stages: Stages) -> None:
    stages["audit"]["result"]["largest_difference"] = 7.0


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
        listed = durable.read_json(run.path / "COMPLETE.json")
        (run.path / "COMPLETE.json").unlink()
        lock = acquire(run.path / "locks")
        marker = markers.write(run, sorted({name.split("/")[0] for name in listed["outputs"]}), {}, lock)
        found[role] = StageInput(run, marker.outputs_digest)
        lock.release()
    return found


def asked_again(
    stage: str, smoke: Smoke, folder: Path, edit: Callable[[Stages], None], change: Change = unchanged
) -> None:
    """The audit or the report of a smoke study that was edited: raises CheckFailed where that is refused."""
    handles = smoke.finished().handles
    stages = contents(handles[f"{smoke.page.name}-report"].inputs)
    edit(stages)
    handle = handles[f"{smoke.page.name}-{stage}"]
    given = written(handles[f"{smoke.page.name}-report"].inputs, folder, stages, change)
    run = stage_run(folder / stage)
    run.run = replace(run.run, root=folder / "runs")  # runs are named relative to their own root
    handle.stage.function()(run, handle.config, **{role: given[role] for role in handle.inputs})


def refused(stage: str, smoke: Smoke, folder: Path, edit: Callable[[Stages], None], change: Change = unchanged) -> str:
    """What the audit or the report says of a smoke study that was edited."""
    with pytest.raises(CheckFailed) as found:
        asked_again(stage, smoke, folder, edit, change)
    assert "measured" in str(found.value) and "required" in str(found.value)
    return str(found.value)
