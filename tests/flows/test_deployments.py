"""`prefect.yaml` says what the profiles and the pages say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

from deployments.slurm.cluster.site import Overrides
from flows import robustness, settings, sweep
from tasks.robustness.study import Study
from tasks.stage.run import Stage
from tasks.stage.validation import validated
from tests.conftest import REPOSITORY, ROBUSTNESS
from tests.slurm.harness import PREFECT, Server, until

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]
STUDIES = [one for one in DEPLOYMENTS if one["entrypoint"] == "flows.robustness.robustness"]
STAGES = [one for one in DEPLOYMENTS if one["entrypoint"] == "flows.stage.stage"]


def test_there_is_one_for_each_profile_and_each_stage_name() -> None:
    assert sorted(one["name"] for one in STUDIES) == settings.profile_names(ROBUSTNESS)
    pages = {value.name for page in (robustness, sweep) for value in vars(page).values() if isinstance(value, Stage)}
    assert sorted(one["name"] for one in STAGES) == sorted(pages)


@pytest.mark.parametrize("deployment", STUDIES, ids=lambda one: one["name"])
def test_a_study_s_parameters_are_its_profile(deployment: dict[str, Any]) -> None:
    given = validated(Study, deployment["parameters"]["study"], "prefect.yaml")
    assert given == settings.read_study(ROBUSTNESS, deployment["name"], [], None)
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    flow.validate_parameters(deployment["parameters"])
    assert deployment["parameters"]["dispatch"] == "slurm" and deployment["work_pool"]["name"] == "ratchet"


@pytest.mark.parametrize("deployment", STAGES, ids=lambda one: one["name"])
def test_a_stage_s_resources_are_fields_of_the_pool(deployment: dict[str, Any]) -> None:
    variables = dict(deployment["work_pool"]["job_variables"])
    assert variables.pop("command") == "python -m flows.stage {parameters}"
    assert Overrides.model_validate(variables).time_limit_minutes
    assert deployment["work_pool"]["name"] == "gpu"


def test_every_entrypoint_is_a_module_s() -> None:
    """The form `path.py:function` puts the file's folder first on the import path, and loads classes twice."""
    for deployment in DEPLOYMENTS:
        assert re.fullmatch(r"flows\.\w+\.\w+", deployment["entrypoint"])
        assert load_flow_from_entrypoint(deployment["entrypoint"]).name


def test_advance_is_a_backstop_and_not_a_flood() -> None:
    (advance,) = [one for one in DEPLOYMENTS if one["name"] == "advance"]
    (schedule,) = advance["schedules"]
    assert schedule["interval"] >= 600 and advance["work_pool"]["name"] == "ratchet"


def test_a_server_of_one_s_own_makes_the_runs_of_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another SQLAlchemy everything else of the server works, and only its log says that nothing is scheduled."""
    server = Server(tmp_path)
    server.start()
    try:
        monkeypatch.setenv("PREFECT_API_URL", server.address)
        for command in (["work-pool", "create", "ratchet", "--type", "process"], ["deploy", "--name", "advance"]):
            subprocess.run([*PREFECT, *command], cwd=REPOSITORY, check=True, capture_output=True, timeout=120)
        scheduled = {
            "flow_runs": {"state": {"name": {"any_": ["Scheduled"]}}},
            "flows": {"name": {"any_": ["advance"]}},
        }

        def runs() -> list[dict[str, Any]]:
            return httpx.post(f"{server.address}/flow_runs/filter", json=scheduled, timeout=30).json()

        found = until("runs of advance are scheduled", runs, 90)
    finally:
        server.kill()
    assert all(run["auto_scheduled"] and run["work_pool_name"] == "ratchet" for run in found)
