"""What a stage's job asks for, and what it is called with."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from deployments.dag.walk import Handle, Walk
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.plan import Plan
from deployments.slurm.job.resources import kept_resources, own_resources, plan_of
from storage.errors import BadInput
from tasks.stage import numerics
from tasks.stage.execution import Execution
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig

STAGE = Stage("x", ToyConfig, "tests.deployments.toy:work", needs="cpu")


def a_stage(root: Path = Path("/root of it")) -> Handle:
    return Walk(root, "toy")(STAGE, ToyConfig(ends="finished"))


def planned(site: Site, study: Any = None, handle: Any = None) -> Plan:
    given = handle or a_stage()
    return plan_of(given, site, Path("/a b/$(x).yaml"), Path("/source"), study or {}, run="f", automatic=True)


def test_a_job_is_called_with_its_stage_whatever_the_names_hold(monkeypatch):
    for name in numerics.environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("HF_TOKEN", "a secret")
    handle = a_stage()
    plan = planned(Site(root="/shared"))
    assert plan.command == [
        *(sys.executable, "-m", "flows.stage", "--study-file=/a b/$(x).yaml", "--stage=x", "--root=/root of it"),
        f"--fingerprint={handle.run.fingerprint}",
    ]
    assert planned(Site(root="/shared", python="/my env/python")).command[0] == "/my env/python"
    assert plan.environment == {"OPENBLAS_CORETYPE": "Haswell"}, "it chooses kernels; nothing else stands in a script"
    assert (plan.folder, plan.directory) == (handle.run.path / "jobs", Path("/source"))
    assert plan.automatic and plan.comment == f"toy x {handle.run.fingerprint[:12]}"


@pytest.mark.parametrize(
    ("pattern", "seeds", "label"),
    [
        ("{study}-s{seed}-{stage}", [], "toy-x"),
        ("{study}-s{seed}-{stage}", [3], "toy-s3-x"),
        ("{study}-s{seed}-{stage}", [3, 4], "toy-x"),
        ("{stage}_{seed}", [3, 4], "x_all"),
    ],
)
def test_a_job_s_name_has_the_seed_that_its_stage_depends_on(pattern, seeds, label):
    handle = a_stage()
    seen = SimpleNamespace(stage=handle.stage, run=handle.run, seeds=set(seeds), cell=handle.cell, label=handle.label)
    assert planned(Site(root="/shared", job_name=pattern), handle=seen).label == label


def test_the_layers_of_resources_and_which_wins():
    """Put together for each job, so a retry takes what was corrected since, such as the site file."""
    site = Site(
        root="/shared",
        resources={"partition": "s", "qos": "s", "constraint": "s", "cpus": 9},
        stages={
            "cpu": {"qos": "s-cpu", "constraint": "s-cpu"},
            "x": {"constraint": "s-x", "cpus": 10},
            "y": {"gpus": 9},
        },
    )
    study = {"all": {"constraint": "t", "cpus": 11, "exclude": ["t"]}, "x": {"exclude": ["t-x"]}}
    asked = planned(site, study).resources
    assert (asked.memory_gb, asked.time_limit_minutes, asked.gpus) == (32, 60, 0), "what a stage needs"
    assert (asked.partition, asked.qos, asked.constraint) == ("s", "s-cpu", "t")
    assert (asked.cpus, asked.exclude) == (11, ["t-x"])


def test_what_a_kept_study_asks_for_is_what_the_study_asks_for(tmp_path):
    asked = {"all": {"partition": "gpu"}, "first": {"cpus": 4}}
    study = ToyConfig(ends="finished", execution=Execution(resources=asked))
    kept = tmp_path / "study.yaml"
    kept.write_text(yaml.safe_dump({"page": "x", "study": study.model_dump(mode="json")}))
    assert kept_resources(kept) == own_resources(study) == asked
    assert kept_resources(tmp_path / "gone.yaml") == {}
    kept.write_text(kept.read_text().replace("cpus", "cpu"))
    with pytest.raises(BadInput, match=r"execution\.resources\.first: cpu: unknown key.*did you mean 'cpus'"):
        kept_resources(kept)


def test_resources_that_do_not_exist_are_bad_input():
    study = ToyConfig(ends="finished", execution=Execution(resources={"first": {"gpu": 2}}))
    with pytest.raises(BadInput, match=r"execution\.resources\.first: gpu: unknown key.*did you mean 'gpus'"):
        own_resources(study)


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"study: {execution: {resources: null}}", b"study: {execution: [1]}", b"["]
)
def test_a_kept_study_that_cannot_be_read_asks_for_nothing(text, tmp_path):
    (tmp_path / "study.yaml").write_bytes(text)
    assert kept_resources(tmp_path / "study.yaml") == {}
