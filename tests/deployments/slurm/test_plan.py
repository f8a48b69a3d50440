"""From a run's variables and parameters to what its job is called with."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.slurm.plan import SlurmJobConfiguration, command, plan_of
from deployments.slurm.site import Site
from storage.errors import BadInput


def test_parameters_become_options_whatever_they_hold() -> None:
    given = {"study_file": "/a b/$(x).yaml", "stage": "setup", "fingerprint": None}
    assert command("/my\\ env/python -m flows.stage {parameters}", given) == [
        "/my env/python",
        "-m",
        "flows.stage",
        "--study-file=/a b/$(x).yaml",
        "--stage=setup",
    ]


def test_a_plan_takes_the_configuration_and_keeps_prefect_s_environment_out_of_the_script() -> None:
    configuration = SlurmJobConfiguration(
        command="python -m flows.stage {parameters}",
        env={"PREFECT_API_KEY": "a secret", "OMP_NUM_THREADS": "2"},
        cpus=4,
        partition="gpu",
        label="mono-s42-train",
    )
    plan = plan_of(configuration, Site(root="/shared"), "f", "a name", {"stage": "x"}, {}, Path("/own/jobs"), "again")
    assert plan.environment == {"OMP_NUM_THREADS": "2"}
    assert (plan.folder, plan.directory, plan.label) == (Path("/own/jobs"), Path("/shared"), "mono-s42-train")
    assert (plan.resources.cpus, plan.resources.partition, plan.state_message) == (4, "gpu", "again")


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "key", "db_password"])
def test_a_secret_is_refused_before_it_stands_in_a_script(name: str) -> None:
    configuration = SlurmJobConfiguration(command="work", env={name: "hf_abc", "TOKENIZERS_PARALLELISM": "true"})
    with pytest.raises(BadInput, match=f"env: {name}.*pass_environment") as refused:
        plan_of(configuration, Site(root="/shared"), "f", "a name", {}, {}, Path("/own/jobs"))
    assert "hf_abc" not in str(refused.value)


def test_what_only_sounds_like_a_secret_is_let_through() -> None:
    given = {"TOKENIZERS_PARALLELISM": "true", "MONKEY": "1", "OMP_NUM_THREADS": "2"}
    configuration = SlurmJobConfiguration(command="work", env=given)
    plan = plan_of(configuration, Site(root="/shared"), "f", "a name", {}, {}, Path("/own/jobs"))
    assert plan.environment == given


def test_the_site_comes_over_the_deployment_and_under_what_is_the_run_s_own() -> None:
    """Read when a job is submitted, so a retry takes what was corrected in the site file since."""
    configuration = SlurmJobConfiguration(command="work", partition="cpu", cpus=4, memory_gb=2, qos="q")
    site = Site(
        root="/shared",
        resources={"partition": "gpu", "cpus": 8, "memory_gb": 3.0},
        stages={"x": {"memory_gb": 16.0}, "y": {"qos": "long"}},
    )
    given = (configuration, site, "f", "a name", {"stage": "x"}, {"cpus": 4, "folder": "/f"}, Path("/own/jobs"))
    asked = plan_of(*given).resources
    assert (asked.partition, asked.cpus, asked.memory_gb, asked.qos) == ("gpu", 4, 16.0, "q")
