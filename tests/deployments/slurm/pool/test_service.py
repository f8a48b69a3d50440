"""Who serves a root: how often it polls, what it sets, whom it notifies."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.partitions import Cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission, jobs_folder
from deployments.slurm.pool.places import Alive
from deployments.slurm.pool.reconcile import Finish, Run, SetState
from deployments.slurm.pool.records import Records, record_of
from deployments.slurm.pool.service import FEW_SECONDS, Service, interval_seconds, notify
from storage import durable, locks
from storage.errors import BadInput
from tests.deployments.slurm.job.test_asked import a_stage


@pytest.mark.parametrize(("jobs", "seconds"), [(0, 5.0), (20, 5.0), (1000, 30.0)])
def test_the_interval_adapts(jobs, seconds):
    assert interval_seconds(jobs) == seconds


def test_the_interval_grows_with_the_jobs():
    assert FEW_SECONDS < interval_seconds(100) < interval_seconds(500) < 30 < interval_seconds(5000)


def test_notify_gives_subject_and_diagnosis_and_survives_a_command_that_fails(tmp_path, caplog):
    mail = tmp_path / "mail"
    notify(f'echo "$RATCHET_SUBJECT" > {mail}; cat >> {mail}', "it needs you; $(rm -rf x)", "the cause\n")
    assert mail.read_text() == "it needs you; $(rm -rf x)\nthe cause\n"
    notify("exit 3", "subject", "message")
    assert "notify command failed" in caplog.text


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A root that this process serves."""
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path}\n")
    made = Service(Site(root=str(tmp_path)), locks.acquire(tmp_path / ".slurm" / "gpu" / "locks"), Records())
    yield made
    made.end()


class Refusing:
    """A service whose preflight refuses: the states that its run was given, and what it notified a person of."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.states: list[tuple[Any, ...]] = []
        self.notified: list[str] = []
        self._service, self.handle, self.study = service, a_stage(folder), folder / "study.yaml"
        self.run_folder = self.handle.run.path
        monkeypatch.setattr(service, "notify", lambda name, message: self.notified.append(message))
        monkeypatch.setattr("deployments.slurm.pool.service.read_cluster", lambda: Cluster({}))

    def continues(self, end: End) -> None:
        """It had a job that ended so."""
        run = Records().make(self.handle, False, 0).id
        journal = Journal(jobs_folder(self.handle.run))
        journal.write(Submission(1, "x.1", run, 0.0, True, 4.0, job_id="7", end=end))

    def run(
        self, message: str = "", automatic: bool = True, ended: bool = False, **asked: Any
    ) -> list[tuple[Any, ...]]:
        """`message` is that of the scheduled state; `automatic`: Ratchet itself asked for the job; `ended`: meanwhile
        a poll has set its end. All states so far."""
        records, site = self._service.records, self._service.site.model_copy(update={"resources": {}})
        made = records.make(self.handle, not automatic, 0)
        by = "automatic" if automatic else "person"
        records.write(
            self.handle.run, replace(made, type="PENDING", name="Pending", message=message, asked_by=by, state_id="now")
        )
        run = records.open(made.id)
        assert run
        if asked:
            (Path(site.root) / "site.yaml").write_text(yaml.safe_dump({"root": site.root, "resources": asked}))
        if ended:
            records.set_state(SetState(run, "CANCELLED", "Cancelled", ""))
        self._service.submit(run, self.handle, self.study, Path("/source"))
        now = record_of(self.handle.run)
        if now and now.state_id != "now" and not ended:
            delay = (round(now.due_at - made.due_at, -2),) if now.type == "SCHEDULED" else ()
            self.states.append((now.type, now.name, now.message, *delay))
        return self.states


@pytest.fixture
def refusing(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refusing:
    return Refusing(service, monkeypatch, tmp_path / "runs")


def test_what_is_wrong_with_a_first_job_fails_the_run_and_notifies_a_person(refusing):
    ((type_, name, message),) = refusing.run("", pass_environment=["SURELY_NOT_SET"])
    assert (type_, name) == ("FAILED", "Failed") and "SURELY_NOT_SET is not set" in message
    assert refusing.notified == [message]


def test_nobody_is_notified_twice_of_what_a_poll_found_before(refusing):
    refusing.run("", ended=True, pass_environment=["SURELY_NOT_SET"])
    assert not refusing.notified


def test_what_is_wrong_with_a_continuation_is_waited_for(refusing, tmp_path):
    """A drained partition or a disk that is away for an hour must not end a study of days."""
    end = End("AwaitingRetry", "the time limit")
    refusing.continues(end)
    ((type_, name, message, delay),) = refusing.run("the time limit", pass_environment=["SURELY_NOT_SET"])
    assert (type_, name, delay) == ("SCHEDULED", "AwaitingRetry", 300.0)
    assert message.startswith("cannot be submitted now: ") and "pass_environment: SURELY_NOT_SET" in message
    assert refusing.run(automatic=False, pass_environment=["SURELY_NOT_SET"])[1][0] == "FAILED"


def test_more_memory_than_any_node_has_is_not_waited_for(refusing, tmp_path, monkeypatch):
    """SLURM would queue such a job for ever, or refuse it in words that do not name memory."""
    asked: list[float] = []

    def require(resources: Any, *_: Any, **__: Any) -> None:
        asked.append(resources.memory_gb)
        assert not resources.exclude, "a node that failed is taken again when there is no other"
        if resources.memory_gb > 5:
            raise BadInput("memory_gb: no node has so much")

    monkeypatch.setattr("deployments.slurm.pool.service.require", require)
    end = End("AwaitingRetry", "it ran out of memory", memory_gb=6.0, exclude=["n1"])
    refusing.continues(end)
    ((type_, _, message),) = refusing.run("it ran out of memory", memory_gb=4)
    assert asked == [4, 6] and type_ == "FAILED"
    assert message == "a job ran out of memory, and more cannot be had here: memory_gb: no node has so much"
    assert refusing.notified == [message]


def test_a_limit_in_which_two_jobs_did_no_step_fails_the_run_and_says_which_key_to_raise(refusing, tmp_path):
    """Jobs of 60 s got their signal after 18 s, did no step three times, and named no cause."""
    end = End("AwaitingRetry", "the time limit")
    short = {"start_seconds": 25.0, "diagnosis": {"category": "time limit"}}
    refusing.continues(end)
    for number in (1, 2):
        (folder := refusing.run_folder / "attempts").mkdir(parents=True, exist_ok=True)
        durable.write_json(folder / f"000{number}.json", {"attempt": number} | short)
    ((type_, name, message),) = refusing.run("the time limit", time_limit_minutes=1, lead_seconds=20)
    assert (type_, name) == ("FAILED", "Failed") and "Set time_limit_minutes to at least 2" in message
    assert refusing.notified == [message]


def test_what_was_done_before_a_disk_went_away_is_notified(service, monkeypatch):
    entry = Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7")
    run, end = Run("f", "s", "RUNNING", "Running"), End("Failed", "a check failed")
    done = Finish(run, entry, end, SetState(run, "FAILED", "Failed", end.message))

    def poll() -> None:
        raise OSError(116, "Stale file handle")

    notified: list[str] = []
    monkeypatch.setattr(service, "notify", lambda name, message: notified.append(message))
    service.pool = SimpleNamespace(poll=poll, done=[done], seen=[])
    with pytest.raises(OSError, match="Stale"):
        service.poll()
    assert notified == ["a check failed"]


def test_who_serves_and_was_taken_over_may_submit_nothing(service):
    assert service.pool._ours()
    service.lock.release()
    other = locks.acquire(service.lock.directory)
    assert not service.pool._ours()
    other.release()


def test_each_poll_keeps_the_places_by_the_site_file_as_it_is_now(service, tmp_path):
    kept: list[tuple[int | None, Alive]] = []
    told: list[int] = []
    alive, keep = Alive(), lambda site, alive: kept.append((site.max_jobs, alive))
    seen = [SimpleNamespace(run=Run("f", "s", type_, type_), submissions=[]) for type_ in ("PENDING", "CANCELLING")]
    service.places = SimpleNamespace(keep=keep, tell=told.append)
    service.pool = SimpleNamespace(poll=lambda: None, done=[], seen=seen, alive=alive)
    for text in (f"root: {tmp_path}\nmax_jobs: 2\n", f"root: {tmp_path}\nmax_job: 2\n", f"root: {tmp_path}\n"):
        (tmp_path / "site.yaml").write_text(text)
        service.poll()
        service.tell()
    service.pool.alive = None
    service.poll()
    assert kept == [(2, alive), (2, alive), (None, alive)] and told == [1, 1, 1]


def test_a_person_is_notified_once_of_what_is_put_off_again_and_again(refusing, tmp_path):
    end = End("AwaitingRetry", "the time limit")
    refusing.continues(end)
    message = refusing.run("the time limit", pass_environment=["SURELY_NOT_SET"])[0][2]
    refusing.run(message, pass_environment=["SURELY_NOT_SET"])
    assert [state[2] for state in refusing.states] == [message, message] and len(refusing.notified) == 1


def test_the_site_file_is_read_for_each_job_and_waited_for_while_somebody_edits_it(refusing, service, tmp_path):
    plans = []
    service.pool = SimpleNamespace(submit=plans.append)
    site = tmp_path / "site.yaml"
    site.write_text(f"root: {tmp_path}\nresources:\n  cpuss: 3\n")
    ((type_, name, message, delay),) = refusing.run(automatic=False)
    assert (type_, name, delay) == ("SCHEDULED", "AwaitingRetry", 300.0) and not plans
    assert "did you mean 'cpus'" in message and refusing.notified == [message.removeprefix("cannot be submitted now: ")]
    site.write_text(f"root: {tmp_path}\nresources:\n  time_limit_minutes: 77\n")
    assert len(refusing.run(message, automatic=False)) == 1, "no state was set"
    assert [(plan.resources.time_limit_minutes, plan.automatic) for plan in plans] == [(77, False)]


def test_a_root_that_moves_in_the_site_file_moves_nothing_that_is_under_way(refusing, service, tmp_path):
    service.pool = SimpleNamespace(submit=lambda plan: "7")
    (tmp_path / "site.yaml").write_text("root: /elsewhere\njob_name: other\n")
    refusing.run("")
    assert (service.site.root, service.site.job_name) == (str(tmp_path), "other")


def test_a_kept_study_that_asks_for_what_does_not_exist_is_waited_for(refusing, tmp_path):
    refusing.study.parent.mkdir(parents=True, exist_ok=True)
    refusing.study.write_text("page: x\nstudy: {execution: {resources: {all: {cpu: 1}}}}\n")
    ((_, name, message, _),) = refusing.run("")
    assert name == "AwaitingRetry" and "did you mean 'cpus'" in message


def test_a_person_is_notified_of_a_job_that_waits_for_one_whatever_its_message_says(service, monkeypatch):
    notified: list[str] = []
    monkeypatch.setattr(service, "notify", lambda name, message: notified.append(message))
    run = Run("f", "s", "PENDING", "Pending")
    entry = Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7")
    advice = diagnosis.waiting("JobHeldAdmin").text
    done = [
        SetState(run, "PENDING", "InfrastructurePending", advice),
        SetState(run, "PENDING", "InfrastructurePending", "in other words", needs_person=True),
    ]
    seen = [SimpleNamespace(run=run, submissions=[entry])]
    service.pool = SimpleNamespace(poll=lambda: None, done=done, seen=seen, alive=None)
    service.poll()
    assert notified == ["in other words"]
