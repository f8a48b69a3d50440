"""What aggregate reads, taken from the tiny study that really ran, edited, and sealed again with real markers.

`contents()` gives every stage's result, records and metrics as plain values to change; `written()` puts them on disk
under markers that hold: what is then refused is refused for what it says, not for its digest.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import durable, markers
from storage.locks import acquire
from storage.run_directory import RunDirectory
from tasks.report.audit import AuditResult
from tasks.report.publish import Published
from tasks.robustness.aggregate import aggregate
from tasks.robustness.audit import audit
from tasks.robustness.final_results import FinalResults
from tasks.robustness.stages import JUDGED
from tasks.robustness.strongest import increases_of
from tasks.robustness.study import Study
from tasks.stage.run import StageInput
from tests.tasks.tiny import finished_study, stage_run

Stages = dict[str, dict[str, Any]]
"""Role in aggregate -> {"result", "rows", "metrics", "described"}; what has neither rows nor metrics lacks the key."""


@cache
def _contents() -> Stages:
    found: Stages = {}
    for role, handle in finished_study().handles["aggregate"].inputs.items():
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


def as_measured() -> Stages:
    """A copy to edit."""
    return copy.deepcopy(_contents())


def contents() -> Stages:
    """The same, in which the sublayers of the arms live: those of the tiny study learn nothing."""
    found = as_measured()
    for arm in finished_study().study.arms:
        set_rise(found, arm, 1.0)
    return found


def set_rise(stages: Stages, arm: str, nats: float) -> None:
    """What the replacement of an arm's sublayers by their means costs."""
    live = stages[arm]["result"]["sublayers"]
    live["loss_with_means_nats_per_token"] = live["loss_nats_per_token"] + nats
    live["rise_nats_per_token"] = live["loss_with_means_nats_per_token"] - live["loss_nats_per_token"]


def keep_consistent(stages: Stages, attack: str) -> None:
    """What else says the attacked losses of a model: shares of its search, blind search below it, and transfer."""
    for role, stage in stages.items():
        for row in stage["rows"] if role.startswith(f"{attack}-") else []:
            row["budget_losses_sum_nats"] = [row["loss_sum_nats"]] * 3
            row["blind_loss_sum_nats"] = row["loss_sum_nats"] - 0.01 * row["tokens_scored"]
    transfer_again(stages, attack)


def transfer_again(stages: Stages, attack: str) -> None:
    """Whatever was found for any model does to a model what its own search, or blind search, does: as edited."""
    own = {
        (row["model"], row["example_id"]): row
        for role, stage in stages.items()
        if role.startswith(f"{attack}-")
        for row in stage["rows"]
    }
    rows = stages["transfer"]["rows"]
    for row in rows:
        if (row["attack"].split(",")[0], row["split"]) == (attack, JUDGED):  # of every restart
            theirs = own[row["model"], row["example_id"]]
            row |= {name: theirs[name] for name in ("clean_loss_sum_nats", "text_clean_loss_sum_nats")}
            row["loss_sum_nats"] = theirs["loss_sum_nats" if row["search"] == "gradient" else "blind_loss_sum_nats"]
    stages["transfer"]["result"][attack] = increases_of(rows)[attack, JUDGED]
    if attack == "hotflip":
        searched_again(stages)


def searched_again(stages: Stages) -> None:
    """The search for flips saw what was judged, before its first round and after its last."""
    for role, stage in stages.items():
        if role.startswith("hotflip-"):
            tokens = sum(row["tokens_scored"] for row in stage["rows"])
            for row in stage["rows"]:
                saw = row["search_losses_sum_nats"]
                saw[0], saw[-1] = row["clean_loss_sum_nats"], row["loss_sum_nats"]
            for number, point in enumerate(stage["result"]["curve"]):
                saw = [row["search_losses_sum_nats"] for row in stage["rows"]]
                point["loss_nats_per_token"] = sum(own[number] - own[0] for own in saw) / tokens


def written(
    folder: Path, stages: Stages, change: Callable[[str, Path], None] = lambda role, path: None
) -> dict[str, StageInput]:
    """Role -> finished stage, below `folder`/runs, as `stages` says and sealed again.

    `change` is given the role and the run directory of each before that, to edit other files.
    """
    real, inputs = finished_study().handles["aggregate"].inputs, {}
    for role, values in stages.items():
        theirs = real[role].run
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
        inputs[role] = StageInput(run, marker.outputs_digest)
        lock.release()
    return inputs


def audited(folder: Path, inputs: dict[str, StageInput], configured: Study) -> AuditResult:
    """What the audit says of these inputs of aggregate."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {role: inputs[role] for role in finished_study().handles["audit"].inputs}
    return audit(stage_run(folder), configured.for_audit(), **given)


def aggregated(folder: Path, inputs: dict[str, StageInput], configured: Study) -> tuple[Published, Path]:
    """The result of aggregate on these inputs, and the directory that it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    run = stage_run(folder)
    run.run = SimpleNamespace(root=next(iter(inputs.values())).run.root)  # runs are named relative to their own root
    return aggregate(run, configured.for_aggregate(), **inputs), run.directory


def typed(numbers: dict[str, Any]) -> FinalResults:
    """`final_results.json` as the tables and sentences take it."""
    return FinalResults.model_validate(numbers)
