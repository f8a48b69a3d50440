"""What a person's Cancel of a study on SLURM ends, and what it leaves alone."""

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Running

from deployments.dag.page import load_page
from deployments.slurm.cluster.client import Job
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission, jobs_folder
from deployments.slurm.pool import runs as pool_runs
from deployments.slurm.study import cancel
from deployments.slurm.study import study as study_file
from deployments.slurm.study.stop import cancel_jobs
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
    monkeypatch.setattr(cancel, "_cancel", lambda slurm, study_files, spared, *why: found.append(spared))
    return found


def test_a_cancelled_study_is_not_started_again_and_spares_what_another_one_wants(tmp_path, spared):
    root, study = tmp_path / "runs", toy_study("shared")
    one = kept_study(root, study)
    cancel.withdraw(one, "its report is refused")
    assert spared.pop() == set(), "it is not another one"
    other = kept_study(root, study.model_copy(update={"seed": 4}))  # the toy's stages are the same for every seed
    (root / "shared" / "studies" / "unreadable.yaml").write_text("[")
    cancel.stop(one)
    assert study_file.stopped(one.file).exists() and not study_file.stopped(other.file).exists()
    cancel.stop(other)
    assert spared == [prints(other), set()]


def test_only_a_study_on_slurm_is_stopped_by_a_cancel_of_its_flow_run(tmp_path, spared):
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


def test_a_cancel_ends_what_was_started_of_the_study_before_a_stage_changed(tmp_path, monkeypatch):
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


def test_a_cancel_that_no_process_heard_of_is_finished_by_advance(tmp_path, spared, prefect_server, monkeypatch):
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
    tmp_path, prefect_server, monkeypatch
):
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


def test_a_study_that_a_command_started_has_one_flow_run_which_its_cancel_ends(tmp_path, prefect_server, monkeypatch):
    """It had none: nothing in the UI showed the study as a whole, and nothing could cancel it."""
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'runs'}\n")
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    study = toy_study("by-command", resources={"cpus": 2})
    kept = kept_study(tmp_path / "runs", study)
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        first = cancel.address_of(kept)
        assert cancel.address_of(kept) == first, "a second start finds it"
        elsewhere = _run_at(client, cancel.address_of(kept_study(tmp_path / "other", study)))
        run = _run_at(client, first)
        assert client.read_deployment(run.deployment_id).entrypoint == "tests.slurm.toy.toy"
        assert run.work_pool_name == "ratchet" and run.state.is_scheduled() and {"by-command", "study"} <= {*run.tags}
        assert TOY.model.model_validate(run.parameters["study"]) == study and run.parameters["dispatch"] == "slurm"
        stage = client.create_flow_run_from_deployment(
            run.deployment_id,
            parameters={"root": str(kept.root), "study_file": str(kept.file), "fingerprint": "f" * 64},
            tags=["by-command"],
        )
        assert cancel.cancel_runs(kept, cancel.mark_stopped(kept)) == 2
        states = [client.read_flow_run(one.id).state.name for one in (run, stage, elsewhere)]
        assert states == ["Cancelled", "Cancelled", "Scheduled"]
        kept.keep()
        assert cancel.address_of(kept) != first, "started again it has a new one"


@pytest.mark.parametrize("process", ["none yet", "gone"])
def test_a_cancel_of_a_study_s_run_that_no_process_heard_of_is_finished_by_advance(
    tmp_path, spared, prefect_server, monkeypatch, process
):
    """Prefect sets it Cancelled, at once or after five minutes, and calls no hook: its jobs went on."""
    monkeypatch.setattr("deployments.slurm.study.cancel.read_site", lambda: Site(root=str(tmp_path / "runs")))
    kept = kept_study(tmp_path / "runs", toy_study("unheard-" + process[:4]))
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        run = _run_at(client, cancel.address_of(kept))
        if process == "gone":
            client.set_flow_run_state(run.id, Running(), force=True)
        client.set_flow_run_state(run.id, Cancelling())
        if process == "gone":
            client.set_flow_run_state(run.id, Cancelled(message="Flow run cancellation timed out"), force=True)
        assert client.read_flow_run(run.id).state.name == "Cancelled"
        cancel.finish_cancels(kept.root)
        assert study_file.stopped(kept.file).exists() and spared == [set()]
        os.utime(kept.keep(), (time.time() + 9, time.time() + 9))
        cancel.finish_cancels(kept.root)
        assert len(spared) == 1, "a start after the cancel stands"


def test_the_jobs_of_a_cancelled_study_are_ended_without_worker_or_server(tmp_path):
    kept = kept_study(tmp_path, toy_study("jobs"))
    journal = Journal(jobs_folder(kept.handles[0].run))
    for number, end in ((1, End("AwaitingRetry", "the time limit")), (2, None), (3, None), (4, None)):
        journal.write(Submission(number, f"jobs.{number}", "f", 0.0, True, 4.0, job_id=str(number), end=end))
    slurm = Slurm(
        {
            "1": Job("1", "jobs.1", "TIMEOUT"),
            "2": Job("2", "jobs.2", "RUNNING"),
            "3": Job("3", "of somebody else", "RUNNING"),  # the cluster began its ids anew
            "4": Job("4", "jobs.4", "COMPLETED"),
        }
    )
    cancel.mark_stopped(kept)
    assert cancel_jobs(kept, slurm) == 1 and slurm.cancelled == ["2"]
    kept_study(tmp_path, toy_study("jobs").model_copy(update={"seed": 4}))
    assert cancel_jobs(kept, slurm) == 0, "another study wants the same stages"


@dataclass
class Slurm:
    """A SLURM with these jobs."""

    known: dict[str, Job]
    cancelled: list[str] = field(default_factory=list)

    def jobs(self) -> dict[str, Job]:
        return self.known

    def cancel(self, ids: list[str]) -> None:
        self.cancelled += ids


def _run_at(client: SyncPrefectClient, address: str) -> Any:
    return client.read_flow_run(UUID(address.rpartition("/")[2]))


def _cancelling(client: SyncPrefectClient, flow_id: UUID, parameters: dict[str, Any]) -> UUID:
    """A flow run of a study in that state, as one has it whose process is gone."""
    asked = {"flow_id": str(flow_id), "parameters": parameters, "tags": ["ratchet"], "state": {"type": "RUNNING"}}
    run = UUID(client._client.post("/flow_runs/", json=asked).json()["id"])
    client.set_flow_run_state(run, Cancelling(), force=True)
    return run


def prints(slurm: SlurmStudy) -> set[str]:
    return {handle.run.fingerprint for handle in slurm.handles}
