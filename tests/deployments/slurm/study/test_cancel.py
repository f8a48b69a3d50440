"""What a person's Cancel of a study on SLURM ends, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from deployments.page import load_page
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool import runs as pool_runs
from deployments.slurm.study import cancel
from deployments.slurm.study import file as study_file
from deployments.slurm.study.study import SlurmStudy
from tests.slurm import toy
from tests.slurm.harness import kept_study, toy_study

TOY = load_page("tests.slurm.toy")


@pytest.fixture
def spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What each cancel of a study's flow runs was to spare."""
    site = tmp_path / "site.yaml"
    site.write_text(f"root: {tmp_path / 'runs'}\n")
    monkeypatch.setenv("RATCHET_SITE", str(site))
    found: list[set[str]] = []
    monkeypatch.setattr(cancel, "_cancel", lambda slurm, study_files, spared: found.append(spared))
    return found


def test_a_cancelled_study_is_not_started_again_and_spares_what_another_one_wants(
    tmp_path: Path, spared: list[set[str]]
) -> None:
    root, study = tmp_path / "runs", toy_study("shared")
    one = kept_study(root, study)
    other = kept_study(root, study.model_copy(update={"seed": 4}))  # the toy's stages are the same for every seed
    (root / "shared" / "studies" / "unreadable.yaml").write_text("[")
    cancel.stop(one)
    assert study_file.stopped(one.file).exists() and not study_file.stopped(other.file).exists()
    cancel.stop(other)
    assert spared == [prints(other), set()]


def test_only_a_study_on_slurm_is_stopped_by_a_cancel_of_its_flow_run(tmp_path: Path, spared: list[set[str]]) -> None:
    study = toy_study("alone")
    kept_study(tmp_path / "runs", study)
    hook = cancel.stop_cancelled(TOY)

    def press(**parameters: Any) -> None:
        given = {"study": study.model_dump(mode="json")} | parameters
        hook(None, type("Run", (), {"parameters": given}), None)

    press(dispatch="local")
    press()
    assert not spared
    press(dispatch="slurm")
    assert spared == [set()]
    cancel.stop(SlurmStudy.at_site(TOY, toy_study("never-started")))
    assert len(spared) == 1


def test_a_cancel_ends_what_was_started_of_the_study_before_a_stage_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[set[str]] = []
    monkeypatch.setattr(cancel, "_cancel", lambda slurm, study_files, spared: ended.append(study_files))
    once = kept_study(tmp_path, toy_study("kept")).file
    other = kept_study(tmp_path, toy_study("kept", steps=18)).file
    (once.parent / "broken.yaml").write_bytes(b"\xff")
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    cancel.stop(SlurmStudy(TOY, toy_study("kept"), Site(root=str(tmp_path)), tmp_path))
    assert ended == [{str(once)}] and study_file.stopped(once).exists()
    now = kept_study(tmp_path, toy_study("kept"))
    cancel.stop(now)
    assert ended[1] == {str(now.file), str(once)} and not study_file.stopped(other).exists()


def test_a_cancel_that_no_process_heard_of_is_finished_by_advance(
    tmp_path: Path, spared: list[set[str]], prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reboot of the login node nobody runs the hook of a study's flow."""
    root, study = tmp_path / "runs", toy_study("gone")
    kept = kept_study(root, study)
    own = tmp_path / "another_toy.py"
    own.write_text("from tests.slurm.toy import Study, page\n")
    of_another_page = kept_study(root, study, load_page(str(own)))
    given = {"study": study.model_dump(mode="json"), "root": str(root), "dispatch": "slurm"}
    others = [given | {"root": str(tmp_path / "other")}, given | {"dispatch": "local"}]
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        flow_id = client.create_flow(flow(lambda: None, name="toy"))
        asked, old, *left = (
            _cancelling(client, flow_id, parameters) for parameters in (given, given | {"study": {"once": 1}}, *others)
        )
        monkeypatch.setattr(cancel, "HOOK_SECONDS", 3600.0)
        cancel.finish_cancels(root)
        assert not spared, "its own process is given its time"
        monkeypatch.setattr(cancel, "HOOK_SECONDS", 0.0)
        cancel.finish_cancels(root)
        assert study_file.stopped(kept.file).exists() and spared == [prints(kept)], "the other page wants them"
        assert {client.read_flow_run(run).state.name for run in (asked, old)} == {"Cancelled"}
        assert not study_file.stopped(of_another_page.file).exists(), "nobody cancelled that one"
        assert {client.read_flow_run(run).state.name for run in left} == {"Cancelling"}


def test_a_busy_server_is_asked_again_and_a_study_that_was_not_cancelled_whole_stays_cancelling(
    tmp_path: Path, prefect_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer 503 left the stage running, and the study said Cancelled."""
    root, study = tmp_path / "runs", toy_study("busy")
    site = tmp_path / "site.yaml"
    site.write_text(f"root: {root}\n")
    monkeypatch.setenv("RATCHET_SITE", str(site))
    kept = kept_study(root, study)
    given = {"study": study.model_dump(mode="json"), "root": str(root), "dispatch": "slurm"}
    stage = {"root": str(root), "study_file": str(kept.file), "fingerprint": "f" * 64}
    busy = httpx.HTTPStatusError("503", request=httpx.Request("POST", "http://x"), response=httpx.Response(503))
    asked: list[UUID] = []
    set_state = SyncPrefectClient.set_flow_run_state

    def answers(times_busy: int) -> None:
        left = [busy] * times_busy

        def busy_at_first(self: SyncPrefectClient, run_id: UUID, state: Any, force: bool = False) -> Any:
            asked.append(run_id)
            if left:
                raise left.pop()
            return set_state(self, run_id, state, force)

        monkeypatch.setattr(SyncPrefectClient, "set_flow_run_state", busy_at_first)

    monkeypatch.setattr(cancel, "HOOK_SECONDS", 0.0)
    monkeypatch.setattr(pool_runs, "AGAIN_AFTER_SECONDS", (0.0, 0.0))
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        flow_id = client.create_flow(flow(lambda: None, name="toy"))
        whole = _cancelling(client, flow_id, given)
        wanted = {"flow_id": str(flow_id), "parameters": stage, "tags": ["busy"], "state": {"type": "SCHEDULED"}}
        one = UUID(client._client.post("/flow_runs/", json=wanted).json()["id"])
        answers(times_busy=3)
        cancel.finish_cancels(root)
        assert asked == [one] * 3
        assert [client.read_flow_run(run).state.name for run in (whole, one)] == ["Cancelling", "Scheduled"]
        answers(times_busy=2)
        cancel.finish_cancels(root)
        assert [client.read_flow_run(run).state.name for run in (whole, one)] == ["Cancelled", "Cancelled"]


def _cancelling(client: SyncPrefectClient, flow_id: UUID, parameters: dict[str, Any]) -> UUID:
    """A flow run of a study in that state, as one has it whose process is gone."""
    asked = {"flow_id": str(flow_id), "parameters": parameters, "tags": ["ratchet"], "state": {"type": "RUNNING"}}
    run = UUID(client._client.post("/flow_runs/", json=asked).json()["id"])
    client.set_flow_run_state(run, Cancelling(), force=True)
    return run


def prints(slurm: SlurmStudy) -> set[str]:
    return {handle.run.fingerprint for handle in slurm.handles}
