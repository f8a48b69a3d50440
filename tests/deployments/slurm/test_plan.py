"""From a run's variables and parameters to what its job is called with; how often SLURM is looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.slurm.plan import SlurmJobConfiguration, command, plan_of
from deployments.slurm.site import Site
from deployments.slurm.worker import FEW_SECONDS, interval_seconds, notify


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
    plan = plan_of(configuration, Site(root="/shared"), "f", "a name", {"stage": "x"}, Path("/own/jobs"), "again")
    assert plan.environment == {"OMP_NUM_THREADS": "2"}
    assert (plan.folder, plan.directory, plan.label) == (Path("/own/jobs"), Path("/shared"), "mono-s42-train")
    assert (plan.resources.cpus, plan.resources.partition, plan.state_message) == (4, "gpu", "again")


@pytest.mark.parametrize(("jobs", "seconds"), [(0, 5.0), (20, 5.0), (1000, 30.0)])
def test_the_interval_adapts(jobs: int, seconds: float) -> None:
    assert interval_seconds(jobs) == seconds


def test_the_interval_grows_with_the_jobs() -> None:
    assert FEW_SECONDS < interval_seconds(100) < interval_seconds(500) < 30 < interval_seconds(5000)


def test_notify_gives_subject_and_diagnosis_and_survives_a_command_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mail = tmp_path / "mail"
    notify(f'echo "$RATCHET_SUBJECT" > {mail}; cat >> {mail}', "it needs you; $(rm -rf x)", "the cause\n")
    assert mail.read_text() == "it needs you; $(rm -rf x)\nthe cause\n"
    notify("exit 3", "subject", "message")
    assert "notify command failed" in caplog.text
