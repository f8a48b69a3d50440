"""From a run's variables and parameters to what its job is called with."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.slurm.cluster.site import Site
from deployments.slurm.job.plan import Plan
from deployments.slurm.job.variables import JobValues, Layers, command, kept_resources, own_resources, plan_of
from storage.errors import BadInput
from tasks.stage import numerics
from tasks.stage.execution import Execution
from tests.deployments.toy import ToyConfig

SHARED = Site(root="/shared")


def planned(
    configuration: JobValues,
    site: Site = SHARED,
    study: Any = None,
    given: Any = None,
    automatic: bool = False,
    **parameters: str,
) -> Plan:
    layers = Layers(configuration, site, study or {}, given or {})
    own = Path("/own/jobs")
    return plan_of(layers, name="a name", parameters=parameters, own_folder=own, flow_run="f", automatic=automatic)


def test_parameters_become_options_whatever_they_hold():
    given = {"study_file": "/a b/$(x).yaml", "stage": "setup", "fingerprint": None}
    assert command("/my\\ env/python -m flows.stage {parameters}", given) == [
        "/my env/python",
        "-m",
        "flows.stage",
        "--study-file=/a b/$(x).yaml",
        "--stage=setup",
    ]


def test_a_plan_takes_the_configuration_and_keeps_prefect_s_environment_out_of_the_script(monkeypatch):
    for name in numerics.environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    configuration = JobValues(
        command="python -m flows.stage {parameters}",
        env={"PREFECT_API_KEY": "a secret", "OMP_NUM_THREADS": "2"},
        cpus=4,
        partition="gpu",
        label="mono-s42-train",
    )
    plan = planned(configuration, stage="x", automatic=True)
    assert plan.environment == {"OMP_NUM_THREADS": "2", "OPENBLAS_CORETYPE": "Haswell"}, "it chooses kernels"
    assert (plan.folder, plan.directory, plan.label) == (Path("/own/jobs"), Path("/shared"), "mono-s42-train")
    assert (plan.resources.cpus, plan.resources.partition, plan.automatic) == (4, "gpu", True)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "HF_TOKEN",
            "HFTOKEN",
            "GITHUB_PAT",
            "DATABASE_URL",
            "PGPASS",
            "API_AUTH",
            "http_proxy",
            "WANDB_KEY",
            "MY_OWN",
        ),
        *(
            "TORCH_TOKEN",
            "NCCL_PASSWORD",
            "CUDA_API_KEY",
            "PYTORCH_SECRETS",
            "NVIDIA_APIKEY",
            "UCX_AUTH_X",
            "PYTHONPASSWD",
        ),
    ],
)
def test_a_secret_is_refused_before_it_stands_in_a_script(name):
    configuration = JobValues(command="work", env={name: "hf_abc", "TOKENIZERS_PARALLELISM": "true"})
    with pytest.raises(BadInput, match=f"env: {name}.*pass_environment") as refused:
        planned(configuration)
    assert "hf_abc" not in str(refused.value)


def test_a_password_in_an_address_is_refused_under_any_name():
    configuration = JobValues(command="work", env={"PYTHONPATH": "https://me:hf_abc@host/x"})
    with pytest.raises(BadInput, match="env: PYTHONPATH") as refused:
        planned(configuration)
    assert "hf_abc" not in str(refused.value)


def test_what_results_and_speed_depend_on_is_let_through():
    given = {"TOKENIZERS_PARALLELISM": "true", "HF_HOME": "/shared/hf", "OMP_NUM_THREADS": "2", "PYTHONPATH": "/a:/b"}
    given |= {
        "CUDA_CACHE_PATH": "/c",
        "NCCL_SOCKET_IFNAME": "ib0",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
        "LC_ALL": "C.UTF-8",
    }
    configuration = JobValues(command="work", env=given)
    plan = planned(configuration)
    assert plan.environment == numerics.environment() | given


def test_the_layers_of_resources_and_which_wins():
    """Put together for each job, so a retry takes what was corrected since, such as the site file."""
    configuration = JobValues(
        command="work", account="d", partition="d", qos="d", constraint="d", cpus=4, memory_gb=2, exclude=["d"]
    )
    site = Site(
        root="/shared",
        resources={"partition": "s", "qos": "s", "constraint": "s", "cpus": 8, "exclude": ["s"]},
        stages={"x": {"qos": "s-x", "constraint": "s-x", "cpus": 9, "exclude": ["s-x"]}, "y": {"memory_gb": 99.0}},
    )
    study = {"all": {"constraint": "t", "cpus": 10, "exclude": ["t"]}, "x": {"cpus": 11, "exclude": ["t-x"]}}
    given = {"exclude": ["own"], "folder": "/f"}
    asked = planned(configuration, site, study, given, stage="x").resources
    assert (asked.account, asked.partition, asked.qos, asked.constraint) == ("d", "s", "s-x", "t")
    assert (asked.cpus, asked.exclude, asked.memory_gb) == (11, ["own"], 2)


def test_what_a_kept_study_asks_for_is_what_the_study_asks_for(tmp_path):
    asked = {"all": {"partition": "gpu"}, "first": {"cpus": 4}}
    study = ToyConfig(ends="finished", execution=Execution(resources=asked))
    kept = tmp_path / "study.yaml"
    kept.write_text(yaml.safe_dump({"page": "x", "study": study.model_dump(mode="json")}))
    assert kept_resources(str(kept)) == own_resources(study) == asked
    assert kept_resources(str(tmp_path / "gone.yaml")) == kept_resources("") == {}
    kept.write_text(kept.read_text().replace("cpus", "cpu"))
    with pytest.raises(BadInput, match=r"execution\.resources\.first: cpu: unknown key.*did you mean 'cpus'"):
        kept_resources(str(kept))


def test_resources_that_do_not_exist_are_bad_input():
    study = ToyConfig(ends="finished", execution=Execution(resources={"first": {"gpu": 2}}))
    with pytest.raises(BadInput, match=r"execution\.resources\.first: gpu: unknown key.*did you mean 'gpus'"):
        own_resources(study)


def test_a_run_s_own_variables_that_no_job_can_have_are_bad_input():
    """Whatever else leaves the worker's submit, Prefect makes Crashed, and nobody is notified."""
    configuration = JobValues(command="work")
    with pytest.raises(BadInput, match="a name: account: must be text"):
        planned(configuration, given={"account": None})


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"study: {execution: {resources: null}}", b"study: {execution: [1]}", b"["]
)
def test_a_kept_study_that_cannot_be_read_asks_for_nothing(text, tmp_path):
    (tmp_path / "study.yaml").write_bytes(text)
    assert kept_resources(str(tmp_path / "study.yaml")) == {}
