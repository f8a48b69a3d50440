"""What is checked of a study on SLURM before any of its stages is started."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.dag.page import load_page
from deployments.dag.walk import Walk
from deployments.slurm.cluster.client import Refused
from deployments.slurm.cluster.site import VARIABLE, Site
from deployments.slurm.study import preflight
from deployments.slurm.study.preflight import _unknown_stages, checked, require_runnable
from deployments.slurm.study.study import SlurmStudy
from flows import command
from storage.errors import BadInput
from tests.deployments.slurm.job.test_preflight import one as one_node
from tests.slurm import toy
from tests.slurm.harness import toy_study

WRONG = {"toy-training": {"partition": "nope"}, "toy-report": {"cpus": 99}, "all": {"memory_gb": 1}}
NOT_SET = {"pass_environment": ["SURELY_NOT_SET"]}


@pytest.fixture
def at_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one node."""
    monkeypatch.setattr(preflight, "read_cluster", lambda: replace(one_node(), would_take=takes_eight_cpus_of_gpu))


def takes_eight_cpus_of_gpu(script: str) -> None:
    if "--partition=nope" in script:
        raise Refused("Invalid partition name specified")
    if "--cpus-per-task=99" in script:
        raise Refused("Requested node configuration is not available")


def a_study(root: Path, asked: dict[str, Any], **of_site: Any) -> SlurmStudy:
    study = toy_study()
    how = study.execution.model_copy(update={"resources": asked})
    site = Site(root=str(root), strict_lead=False, **of_site)
    return SlurmStudy(load_page("tests.slurm.toy"), study.model_copy(update={"execution": how}), site, root)


def test_all_that_stands_against_a_study_is_told_at_once_each_cause_once_with_its_stages(
    at_cluster, tmp_path, monkeypatch
):
    """They came one at a time: of each stage the first, after a correction the next."""
    monkeypatch.setenv("SLURM_CLUSTERS", "gpus")
    with pytest.raises(BadInput) as refused:
        require_runnable(a_study(tmp_path, WRONG, resources=NOT_SET, stages={"no-such-stage": {}}))
    lines = str(refused.value).splitlines()
    for problem in (
        "toy-training: partition nope: SLURM refuses the job (Invalid partition name specified)",
        "toy-report: cpus 99: SLURM refuses the job (Requested node configuration is not available)",
        "toy-training, toy-report: pass_environment: SURELY_NOT_SET is not set here, where jobs are submitted",
        "SLURM_CLUSTERS=gpus is set",
        "site file: stages.no-such-stage: no stage has this name",
    ):
        assert sum(line.strip().startswith(problem) for line in lines) == 1, (problem, lines)
    assert len(lines) == 7 and not [*tmp_path.iterdir()], "and nothing was begun"


def test_a_torch_without_cuda_for_jobs_on_a_gpu_is_told_before_they_are_submitted(at_cluster, tmp_path, monkeypatch):
    study = a_study(tmp_path, {"all": {"memory_gb": 1}})
    monkeypatch.setattr(preflight, "without_cuda", lambda: "no CUDA")
    assert checked(study).refusal == ""
    how = study.study.execution.model_copy(update={"device": "cuda"})
    on_gpu = SlurmStudy(study.page, study.study.model_copy(update={"execution": how}), study.site, tmp_path)
    assert "toy-training: no CUDA" in checked(on_gpu).refusal
    elsewhere = study.site.model_copy(update={"python": "/opt/cuda/bin/python"})
    assert "no CUDA" not in checked(SlurmStudy(study.page, on_gpu.study, elsewhere, tmp_path)).refusal


def test_the_dry_run_tells_all_refusals_above_the_scripts(at_cluster, tmp_path, monkeypatch, capsys):
    """They came below 290 lines."""
    site = tmp_path / "site.yaml"
    site.write_text(
        yaml.safe_dump({"root": str(tmp_path / "runs"), "strict_lead": False, "stages": WRONG | {"all": {}}})
    )
    monkeypatch.setenv(VARIABLE, str(site))
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    assert command.ratchet(["run", "tests.slurm.toy", "--dispatch", "slurm", "--dry-run"]) == 2
    shown = capsys.readouterr().out
    at = [shown.index(part) for part in ("stages.all: no stage", "partition nope", "cpus 99", "#SBATCH", "above")]
    assert at == sorted(at), shown


@pytest.mark.parametrize(
    ("own", "stages", "message"),
    [
        ({"toy-trainig": {}}, {}, "execution.resources.toy-trainig: no stage has this name; known: all, toy-report, "),
        ({"uat": {}}, {}, "execution.resources.uat: no stage has this name"),
        ({}, {"train": {}}, "site file: stages.train: no stage has this name; known: aggregate, "),
    ],
)
def test_resources_of_a_stage_that_does_not_exist_are_refused(own, stages, message, tmp_path):
    """They would be given to nobody, and the stage that was meant would run with too little."""
    walk = Walk(tmp_path, "toy")
    toy.page(toy_study(), walk)
    (told,) = _unknown_stages(walk, own, Site(root="/shared", stages=stages))
    assert told.startswith(message)
    elsewhere = {"uat": {}, "cpu": {}}  # another study's stage, and what stages of several need
    assert _unknown_stages(walk, {"all": {}, "toy-report": {}}, Site(root="/shared", stages=elsewhere)) == []
