"""What a person's Cancel of a study on SLURM ends, and what it leaves alone."""

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Running

from deployments.dag.page import load_page
from deployments.slurm.cluster.client import Job
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission, jobs_folder
from deployments.slurm.pool.records import Records, record_of
from deployments.slurm.study import cancel
from deployments.slurm.study import study as study_file
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.stop import cancel_jobs, mark_stopped
from deployments.slurm.study.study import SlurmStudy
from tests.slurm import toy
from tests.slurm.harness import kept_study, toy_study

TOY = load_page("tests.slurm.toy")


@dataclass
class Slurm:
    """A SLURM with these jobs."""

    known: dict[str, Job] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    def jobs(self) -> dict[str, Job]:
        return self.known

    def cancel(self, ids: list[str]) -> None:
        self.cancelled += ids


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    """The site's; no Prefect server is told."""
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path / 'runs'}\n")
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    made = Slurm()
    monkeypatch.setattr(cancel, "SlurmCommands", lambda: made)
    return made


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "cancel_flow_runs", lambda slurm, files: 0)


def with_job(kept: SlurmStudy, slurm: Slurm, job_id: str, number: int = 0) -> None:
    """A stage of the study has a job that runs."""
    journal, name = Journal(jobs_folder(kept.handles[number].run)), f"job.{job_id}"
    entry = journal.write(Submission(1, name, "f", 0.0, True, 4.0, job_id=job_id))
    journal.script(entry).write_text(f"srun --study-file={kept.file}")
    slurm.known[job_id] = Job(job_id, name, "RUNNING")


@pytest.mark.usefixtures("untold")
def test_a_cancelled_study_is_not_started_again_and_spares_what_another_one_wants(tmp_path, slurm):
    root, study = tmp_path / "runs", toy_study("shared")
    one = kept_study(root, study)
    other = kept_study(root, study.model_copy(update={"seed": 4}))  # the toy's stages are the same for every seed
    (root / "shared" / "studies" / "unreadable.yaml").write_text("[")
    with_job(one, slurm, "7")
    cancel.stop(one)
    assert study_file.stopped(one.file).exists() and not study_file.stopped(other.file).exists()
    assert slurm.cancelled == []
    cancel.stop(other)
    assert slurm.cancelled == ["7"]


@pytest.mark.usefixtures("untold")
def test_only_a_study_on_slurm_is_stopped_by_a_cancel_of_its_flow_run(tmp_path, slurm):
    study = toy_study("alone")
    kept = kept_study(tmp_path / "runs", study)
    with_job(kept, slurm, "7")
    hook = cancel.stop_cancelled(TOY)

    def press(**parameters: Any) -> None:
        given = {"study": study.model_dump(mode="json")} | parameters
        hook(None, type("Run", (), {"parameters": given}), None)

    press(dispatch="local")
    press()
    assert not slurm.cancelled and not study_file.stopped(kept.file).exists()
    press(dispatch="slurm")
    assert slurm.cancelled == ["7"] and study_file.stopped(kept.file).exists()
    never = SlurmStudy.at_site(TOY, toy_study("never-started"))
    cancel.stop(never)
    assert not study_file.stopped(never.file).exists()


@pytest.mark.usefixtures("untold")
def test_a_cancel_ends_what_was_started_of_the_study_before_a_stage_changed(tmp_path, slurm, monkeypatch):
    once = kept_study(tmp_path, toy_study("kept"))
    other = kept_study(tmp_path, toy_study("kept", steps=18))
    with_job(once, slurm, "7")
    with_job(other, slurm, "8")
    (once.file.parent / "broken.yaml").write_bytes(b"\xff")
    monkeypatch.setattr(toy, "TRAIN", replace(toy.TRAIN, version=2))
    now = SlurmStudy(TOY, toy_study("kept"), Site(root=str(tmp_path)), tmp_path)
    assert now.handles[0].run != once.handles[0].run
    cancel.stop(now)
    assert slurm.cancelled == ["7"] and study_file.stopped(once.file).exists()
    assert not study_file.stopped(other.file).exists()


@pytest.mark.parametrize("has_job", [True, False])
def test_the_runs_of_a_study_that_was_cancelled_end_but_for_those_that_another_one_wants(tmp_path, has_job):
    one = kept_study(tmp_path, toy_study("runs"))
    first, records = one.handles[0], Records()
    run = records.make(first, True, 0)
    if has_job:
        Journal(jobs_folder(first.run)).write(Submission(1, "x", run.id, 0.0, True, 4.0, job_id="7"))
    other = kept_study(tmp_path, toy_study("runs").model_copy(update={"seed": 4}))
    Engine(one.site)._cancel(one, "so it was wished", with_jobs=True)
    assert record_of(first.run) == run
    study_file.stopped(other.file).touch()
    Engine(one.site)._cancel(one, "so it was wished", with_jobs=False)
    assert (record_of(first.run) == run) is has_job, "what has a job goes on"
    Engine(one.site)._cancel(one, "so it was wished", with_jobs=True)
    assert record_of(first.run).name == ("Cancelling" if has_job else "Cancelled")


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
        assert cancel.cancel_flow_runs(kept, mark_stopped(kept)) == 1
        states = [client.read_flow_run(one.id).state.name for one in (run, elsewhere)]
        assert states == ["Cancelled", "Scheduled"]
        kept.keep()
        assert cancel.address_of(kept) != first, "started again it has a new one"


@pytest.mark.parametrize("process", ["none yet", "gone", "hung"])
def test_a_cancel_of_a_study_s_run_that_no_process_heard_of_is_finished_by_advance(
    tmp_path, slurm, prefect_server, monkeypatch, process
):
    """Prefect sets it Cancelled, at once or after five minutes, and calls no hook, or leaves it Cancelling."""
    kept = kept_study(tmp_path / "runs", toy_study("unheard-" + process[:4]))
    broken = kept_study(tmp_path / "runs", toy_study("broken")).file
    broken.write_text("[")
    with_job(kept, slurm, "7")
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        run = _run_at(client, cancel.address_of(kept))
        elsewhere = _run_at(client, cancel.address_of(kept_study(tmp_path / "other", kept.study)))
        if process != "none yet":
            client.set_flow_run_state(run.id, Running(), force=True)
        for each in (run, elsewhere):
            client.set_flow_run_state(each.id, Cancelling())
        if process == "gone":
            client.set_flow_run_state(run.id, Cancelled(message="Flow run cancellation timed out"), force=True)
        if process == "hung":
            cancel.finish_cancels(kept.root)
            assert not slurm.cancelled, "its own process is given its time"
            monkeypatch.setattr(cancel, "HOOK_SECONDS", 0.0)
        cancel.finish_cancels(kept.root)
        assert study_file.stopped(kept.file).exists() and slurm.cancelled == ["7"]
        assert client.read_flow_run(run.id).state.name == "Cancelled"
        os.utime(kept.keep(), (time.time() + 9, time.time() + 9))
        cancel.finish_cancels(kept.root)
        assert len(slurm.cancelled) == 1, "a start after the cancel stands"


def test_the_jobs_of_a_cancelled_study_are_ended_without_worker_or_server(tmp_path):
    kept = kept_study(tmp_path, toy_study("jobs"))
    journal = Journal(jobs_folder(kept.handles[0].run))
    for number, end in ((1, End("AwaitingRetry", "the time limit")), (2, None), (3, None), (4, None)):
        journal.write(Submission(number, f"jobs.{number}", "f", 0.0, True, 4.0, job_id=str(number), end=end))
    known = Slurm(
        {
            "1": Job("1", "jobs.1", "TIMEOUT"),
            "2": Job("2", "jobs.2", "RUNNING"),
            "3": Job("3", "of somebody else", "RUNNING"),  # the cluster began its ids anew
            "4": Job("4", "jobs.4", "COMPLETED"),
        }
    )
    mark_stopped(kept)
    assert cancel_jobs(kept, known) == 1 and known.cancelled == ["2"]
    kept_study(tmp_path, toy_study("jobs").model_copy(update={"seed": 4}))
    assert cancel_jobs(kept, known) == 0, "another study wants the same stages"


def _run_at(client: SyncPrefectClient, address: str) -> Any:
    return client.read_flow_run(UUID(address.rpartition("/")[2]))
