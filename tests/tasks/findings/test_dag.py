"""The runs of a study: what read what, as each run wrote it down."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from storage import durable
from storage.run_directory import RunDirectory
from tasks.findings.dag import Dag
from tasks.stage.run import StageInput

LAST = SimpleNamespace(directory=Path("/runs/toy/report/0123456789ab"))


def run_of(root: Path, stage: str, cell: str = "", **inputs: RunDirectory) -> RunDirectory:
    run = RunDirectory(root, "toy", stage, durable.sha256_json([stage, cell]))
    run.path.mkdir(parents=True)
    described: dict[str, Any] = {"configuration": {"cell": cell}, "numerics": {"torch": "2"}}
    described["inputs"] = {
        role: {"stage": given.stage, "fingerprint": given.fingerprint} for role, given in inputs.items()
    }
    durable.write_json(run.stage_file, described)
    return run


def dag_of(*last: RunDirectory) -> Dag:
    return Dag.of(LAST, [StageInput(run, "") for run in last])


def test_the_runs_behind_those_that_were_given_are_found_from_what_they_wrote_down(tmp_path):
    text = run_of(tmp_path, "setup")
    model = run_of(tmp_path, "train", "wide", text=text)
    attack = run_of(tmp_path, "attack", "wide", text=text, model=model)
    dag = dag_of(attack)
    assert [node.label for node in dag.nodes.values()] == ["setup", "train (wide)", "attack (wide)", "report"]
    assert dag.nodes[attack.path.name].inputs == (text.path.name, model.path.name)
    assert dag.nodes[LAST.directory.name].inputs == (attack.path.name,)


def test_a_run_that_was_removed_since_stands_without_what_it_read(tmp_path):
    text = run_of(tmp_path, "setup")
    model = run_of(tmp_path, "train", text=text)
    for file in text.path.iterdir():
        file.unlink()
    text.path.rmdir()
    (model.path.parent / "x").mkdir()
    assert [node.stage for node in dag_of(model).nodes.values()] == ["setup", "train", "report"]
