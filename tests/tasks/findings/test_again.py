"""The command that makes a study again, and its file, which is read back as the same study."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.dag.walk import Walk
from flows import robustness
from flows.command import settings
from storage import durable
from storage.run_directory import RunDirectory
from tasks.findings.again import reproduction
from tasks.findings.dag import Dag, Node
from tasks.findings.document import Folded
from tests.conftest import ROBUSTNESS

PROFILES = settings.profile_names(ROBUSTNESS)


def folded(folder: Path, page: str, profile: dict[str, Any], dag: Dag, over: dict[str, Any] | None = None) -> Folded:
    """What a report says of a run whose study was kept so."""
    run = RunDirectory(folder, "it", "report", "a" * 64)
    run.path.mkdir(parents=True)
    assert reproduction(run, dag) == []
    durable.write_json(run.study_file, {"page": page, "study": profile, "over": over or {}})
    (made,) = reproduction(run, dag)
    return made


def dag_with(**numerics: Any) -> Dag:
    return Dag({"a": Node("train", "", Path("a"), (), numerics=numerics), "b": Node("report", "", Path("b"), ("a",))})


@pytest.mark.parametrize("profile", PROFILES)
def test_the_file_is_read_back_as_the_same_study(profile, tmp_path):
    study = settings.read_study(ROBUSTNESS, profile, ["execution.micro_batch_examples=3"], 7)
    made = folded(tmp_path, "robustness", study.model_dump(mode="json"), dag_with(micro_batch_examples=3))
    (tmp_path / made.file).write_text(made.text)
    again = settings.read_study(ROBUSTNESS, str(tmp_path / made.file), [], None)
    assert again.scientific() == study.scientific() and again.name == study.name
    assert again.execution.micro_batch_examples == 3
    assert made.file == f"{study.name}.yaml"
    assert made.text.startswith(f"# ratchet run robustness --profile {made.file}\n")


def test_a_study_of_local_files_names_them_and_has_the_same_runs(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "some words"}\n')
    changes = [f"text={{source: files, paths: [{text}]}}", "model.activation=relu", "snapshots=[0.25, 0.5]"]
    study = settings.read_study(ROBUSTNESS, "smoke", changes, None)
    made = folded(tmp_path, "robustness", study.model_dump(mode="json"), dag_with())
    (tmp_path / made.file).write_text(made.text)
    again = settings.read_study(ROBUSTNESS, str(tmp_path / made.file), [], None)

    def fingerprints(one: Any) -> list[str]:
        walk = Walk(tmp_path / "runs", one.name, one.execution)
        robustness.page(one, walk)
        return [handle.run.fingerprint for handle in walk.handles]

    assert fingerprints(again) == fingerprints(study)


def test_a_page_of_one_s_own_is_named_wherever_it_lies(tmp_path):
    """Its folder would make the report of equal runs have other bytes on another machine."""
    profile = {"name": "letters", "execution": {}}
    one, other = (folded(tmp_path / at, f"{at}/home/letters.py", profile, dag_with()) for at in ("a", "b"))
    assert one == other and one.text.startswith("# ratchet run letters.py --profile letters.yaml\n")


def test_of_the_execution_it_keeps_what_bytes_depend_on_as_the_runs_have_it(tmp_path):
    profile = {"name": "it", "execution": {"cpu_threads": 2, "device": "auto", "stall_minutes": 3.0, "batch": 8}}
    nodes = dict(dag_with(cpu_threads=4, device="cuda", batch=8).nodes)
    nodes["c"] = Node("train", "", Path("c"), (), numerics={"batch": 16})
    said = yaml.safe_load(folded(tmp_path, "robustness", profile, Dag(nodes)).text)
    assert said["execution"] == {"cpu_threads": 4}, "not the device, not what differed, nothing else"


def test_a_sweep_is_made_again_by_a_command_that_is_read_back_as_the_same_values(tmp_path):
    over = {"seed": [1, 2], "budget.learning_rate": [1e-05, 0.001], "constraint.variant": ["mlp_in", "no", "it's"]}
    text = folded(tmp_path, "my study.py", {"name": "it", "execution": {}}, dag_with(), over).text
    command = shlex.split(text.splitlines()[0].removeprefix("# "))
    assert command[:5] == ["ratchet", "sweep", "my study.py", "--profile", "it.yaml"]
    assert settings.read_over([given for given in command[5:] if given != "--over"]) == over
