"""`prefect.yaml` says what the profiles and the pages say."""

import json
import re
from typing import Any

import httpx
import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from deployments.dag.page import load_page
from deployments.dag.sources import page_names
from flows import command
from flows.command import settings
from tasks.stage.validation import validated
from tests.conftest import REPOSITORY
from tests.deployments.prefect.test_embedded import database_in
from tests.flows.answers import SMALL
from tests.slurm.harness import Server, until

DEPLOYMENTS: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]


PAGES = {f"flows.{name}.{name}": load_page(name) for name in page_names()}
STUDIES = [one for one in DEPLOYMENTS if one["entrypoint"] in PAGES]
PROFILES = {entrypoint: settings.profile_names(page) for entrypoint, page in PAGES.items()}
STAGES = [one for one in DEPLOYMENTS if one["entrypoint"] == "flows.stage.stage"]


def test_prefect_yaml_is_what_the_command_makes_of_pages_and_profiles(capsys):
    """After a change of a profile: `ratchet deployments > prefect.yaml`."""
    assert command.ratchet(["deployments"]) == 0
    assert capsys.readouterr().out == (REPOSITORY / "prefect.yaml").read_text()


def test_there_is_one_for_each_profile_called_as_on_the_command_line():
    for entrypoint, names in PROFILES.items():
        made = [one["name"] for one in STUDIES if one["entrypoint"] == entrypoint]
        assert names and sorted(made) == sorted([*names, *(f"{name}-local" for name in names)])


@pytest.mark.parametrize("deployment", STUDIES, ids=lambda one: f"{one['entrypoint'].split('.')[1]} {one['name']}")
def test_a_study_s_parameters_are_its_profile_and_fit_the_form(deployment):
    given, dispatch = deployment["parameters"], deployment["parameters"]["dispatch"]
    page = PAGES[deployment["entrypoint"]]
    profile = deployment["name"].removesuffix("-local")
    study = settings.read_study(page, profile, [], None)
    seeds = {"sweep_seeds": study.sweep_seeds}  # of the command line; a form has `over`
    assert validated(page.model, given["study"] | seeds, "prefect.yaml") == study
    flow = load_flow_from_entrypoint(deployment["entrypoint"])
    flow.validate_parameters(given)
    shown = json.dumps(parameter_schema(flow).model_dump())
    assert "sweep_seeds" not in shown and "sweep_seeds" not in given["study"] and '"seed"' in shown
    whole = given | {"study": study.model_dump(mode="json")}  # as a command gives it
    validate(whole, parameter_schema(flow).model_dump_for_openapi(), raise_on_error=True)
    assert (dispatch == "local") is deployment["name"].endswith("-local")
    first_words = settings.profile_file(page, profile).read_text()[2:40]
    assert deployment["description"].startswith(first_words), "what it is and needs, as the profile says"


def test_every_entrypoint_is_a_module_s():
    """The form `path.py:function` puts the file's folder first on the import path, and loads classes twice."""
    for deployment in DEPLOYMENTS:
        assert re.fullmatch(r"flows\.\w+\.\w+", deployment["entrypoint"])
        assert load_flow_from_entrypoint(deployment["entrypoint"]).name


def test_advance_is_a_backstop_and_not_a_flood():
    (advance,) = [one for one in DEPLOYMENTS if one["name"] == "advance"]
    (schedule,) = advance["schedules"]
    assert schedule["interval"] >= 600 and advance["work_pool"]["name"] == "ratchet"


def test_one_command_deploys_what_is_asked_on_a_server_of_one_s_own_and_says_a_line_for_each(tmp_path, capsys):
    """`prefect deploy --all` printed 1,201 lines in 87 s. With another SQLAlchemy everything else of the server works,
    and only its log says that nothing is scheduled."""
    server, own = Server(tmp_path), tmp_path / "small.py"
    own.write_text(SMALL)
    server.start()
    try:
        shared = ["advance/advance"]
        for settings_ in (temporary_settings({PREFECT_API_URL: server.address}), database_in(tmp_path)):
            with settings_:  # the second brings all up to date, on the server that has the database of PREFECT_HOME
                assert command.ratchet(["deploy", "inversion/quick", str(own)]) == 0
                shown = capsys.readouterr().out.splitlines()
                assert shown == [*shared, "inversion/quick", "small/small", "small/small-local"]
        assert command.ratchet(["deploy", "inversion/quik"]) == 2
        assert "inversion/quick, inversion/quick-local" in capsys.readouterr().err
        assert command.ratchet(["deploy", "--profile", "x.yaml"]) == 2
        made = {one["name"]: one for one in httpx.post(f"{server.address}/deployments/filter", json={}).json()}
        assert len(made) == 4 and len(made["advance"]["schedules"]) == 1
        as_written = next(
            one for one in STUDIES if one["entrypoint"].startswith("flows.inv") and one["name"] == "quick"
        )
        assert made["quick"]["parameters"] == as_written["parameters"]
        scheduled = {
            "flow_runs": {"state": {"name": {"any_": ["Scheduled"]}}},
            "flows": {"name": {"any_": ["advance"]}},
        }

        def runs() -> list[dict[str, Any]]:
            return httpx.post(f"{server.address}/flow_runs/filter", json=scheduled, timeout=300).json()

        found = until("runs of advance are scheduled", runs, 90)
    finally:
        server.kill()
    assert all(run["auto_scheduled"] and run["work_pool_name"] == "ratchet" for run in found)
