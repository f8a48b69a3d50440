"""A study on SLURM as its flow sees it: what a person's Cancel ends, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from deployments.page import load_page
from deployments.slurm.study import file as study_file
from deployments.slurm.study import follow as dispatched
from deployments.walk import Walk
from storage.errors import BadInput
from tests.slurm import toy
from tests.slurm.harness import toy_study
from tests.tasks.tiny import Here

TOY = load_page("tests.slurm.toy")


@pytest.fixture
def cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What each cancel of a study's runs was to spare."""
    site = tmp_path / "site.yaml"
    site.write_text(f"root: {tmp_path / 'runs'}\n")
    monkeypatch.setenv("RATCHET_SITE", str(site))
    spared: list[set[str]] = []
    monkeypatch.setattr(dispatched.slurm_study, "cancel", lambda page, study, files, root, some: spared.append(some))
    return spared


def stages(root: Path, study: toy.Study) -> set[str]:
    walk = Walk(root, study.name)
    toy.page(study, walk)
    return {handle.run.fingerprint for handle in walk.handles}


def test_a_cancelled_study_is_not_started_again_and_spares_what_another_one_wants(
    tmp_path: Path, cancelled: list[set[str]]
) -> None:
    root, one = tmp_path / "runs", toy_study("shared")
    other = one.model_copy(update={"seed": 4})  # the toy's stages are the same for every seed
    files = [study_file.keep(root, TOY, study) for study in (one, other)]
    (root / "shared" / "studies" / "unreadable.yaml").write_text("[")
    dispatched.stop(TOY, one, "")
    assert study_file.stopped(files[0]).exists() and not study_file.stopped(files[1]).exists()
    dispatched.stop(TOY, other, "")
    assert cancelled == [stages(root, other), set()]


def test_only_a_study_on_slurm_is_stopped_by_a_cancel_of_its_flow_run(
    tmp_path: Path, cancelled: list[set[str]]
) -> None:
    study = toy_study("alone")
    study_file.keep(tmp_path / "runs", TOY, study)
    hook = dispatched.stop_cancelled(TOY)

    def cancel(**parameters: Any) -> None:
        given = {"study": study.model_dump(mode="json")} | parameters
        hook(None, type("Run", (), {"parameters": given}), None)

    cancel(dispatch="local")
    cancel()
    assert not cancelled
    cancel(dispatch="slurm")
    assert cancelled == [set()]
    dispatched.stop(TOY, toy_study("never-started"), "")
    assert len(cancelled) == 1


def test_a_cancelled_study_is_found_when_a_stage_has_changed_since_it_was_started(
    tmp_path: Path, cancelled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = toy_study("changed")
    file = study_file.keep(tmp_path / "runs", TOY, study)
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    dispatched.stop(TOY, study, "")
    assert study_file.stopped(file).exists() and cancelled == [set()]


def test_a_finished_study_is_no_longer_looked_at_by_itself(
    tmp_path: Path, cancelled: list[set[str]], prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a stage that gets a new version, or a folder that is removed, would have it all done again, unasked."""
    root, study = tmp_path / "runs", toy_study("finishes")
    file = study_file.keep(root, TOY, study)
    walk = Walk(root, study.name)
    toy.page(study, walk)
    monkeypatch.setattr(dispatched.slurm_study, "look", lambda *_: walk)
    look = dispatched.looks(TOY, study, "")
    look(False)
    assert study_file.active(root) == [file]
    here = Here(root, study.name)
    toy.page(study, here)
    walk.handles[:] = here.handles
    look(False)
    assert study_file.active(root) == []
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        look(True)
    assert study_file.active(root) == [], "started again it was looked at once more, and found finished"


def test_a_cancel_that_no_process_heard_of_is_finished_by_advance(
    tmp_path: Path, cancelled: list[set[str]], prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot of the login node nobody runs the hook of a study's flow."""
    root, study = tmp_path / "runs", toy_study("gone")
    file = study_file.keep(root, TOY, study)
    own = tmp_path / "another_toy.py"
    own.write_text("from tests.slurm.toy import Study, page\n")
    of_another_page = study_file.keep(root, load_page(str(own)), study)
    given = {"study": study.model_dump(mode="json"), "root": str(root), "dispatch": "slurm"}
    others = [given | {"root": str(tmp_path / "other")}, given | {"dispatch": "local"}]
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        flow_id = client.create_flow(flow(lambda: None, name="toy"))
        asked, old, *left = (
            _cancelling(client, flow_id, parameters) for parameters in (given, given | {"study": {"once": 1}}, *others)
        )
        monkeypatch.setattr(dispatched, "HOOK_SECONDS", 3600.0)
        dispatched.finish_cancels(root)
        assert not cancelled, "its own process is given its time"
        monkeypatch.setattr(dispatched, "HOOK_SECONDS", 0.0)
        dispatched.finish_cancels(root)
        assert study_file.stopped(file).exists() and cancelled == [stages(root, study)], "the other page wants them"
        assert {client.read_flow_run(run).state.name for run in (asked, old)} == {"Cancelled"}
        assert not study_file.stopped(of_another_page).exists(), "nobody cancelled that one"
        assert {client.read_flow_run(run).state.name for run in left} == {"Cancelling"}


def _cancelling(client: SyncPrefectClient, flow_id: UUID, parameters: dict[str, Any]) -> UUID:
    """A flow run of a study in that state, as one has it whose process is gone."""
    asked = {"flow_id": str(flow_id), "parameters": parameters, "tags": ["ratchet"], "state": {"type": "RUNNING"}}
    run = UUID(client._client.post("/flow_runs/", json=asked).json()["id"])
    client.set_flow_run_state(run, Cancelling(), force=True)
    return run


def test_bad_input_is_a_state_of_the_study_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(*_: Any) -> None:
        raise BadInput("memory_gb: 900 GB asked for")

    @flow(persist_result=False)
    def study() -> Any:
        return dispatched.follow_in_flow(TOY, toy_study("wrong"), str(tmp_path))

    monkeypatch.setattr(dispatched, "looks", refuses)
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        state = study(return_state=True)
    assert (state.name, state.message) == ("BadInput", "memory_gb: 900 GB asked for")
    assert not [record for record in caplog.records if record.exc_info]


def test_a_start_that_is_refused_changes_nothing_of_a_study_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: list[set[str]]
) -> None:
    """The kept file is what the next job of a training under way is made of."""
    file = study_file.keep(tmp_path / "runs", TOY, toy_study("under-way"))
    study_file.stopped(file).touch()
    before = file.read_bytes()

    def refuses(*_: Any) -> None:
        raise BadInput("memory_gb: 9000 GB asked for")

    monkeypatch.setattr(dispatched.slurm_study, "require_runnable", refuses)
    with pytest.raises(BadInput, match="9000"):
        dispatched.looks(TOY, toy_study("under-way", {"memory_gb": 9000}), "")(True)
    assert file.read_bytes() == before and study_file.stopped(file).exists()


def test_an_edit_of_the_site_file_does_not_end_what_follows_a_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: list[set[str]]
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(dispatched.slurm_study, "require_runnable", lambda *_: None)
    monkeypatch.setattr(dispatched, "look_at", lambda file, site, root, person: seen.append((site.root, person)))
    look = dispatched.looks(TOY, toy_study("followed"), "")
    look(True)
    (tmp_path / "site.yaml").write_text("")
    look(False)
    assert seen == [(str(tmp_path / "runs"), True), (str(tmp_path / "runs"), False)]
