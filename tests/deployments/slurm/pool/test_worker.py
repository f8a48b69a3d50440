"""The worker: how often it polls, what it sets, whom it notifies, and that a server which is away does not end it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest
from prefect.states import State, StateType
from prefect.workers.base import BaseWorker

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.client import Unreachable
from deployments.slurm.cluster.partitions import Cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.job.plan import Origin
from deployments.slurm.job.variables import JobValues
from deployments.slurm.pool.configuration import SlurmJobConfiguration
from deployments.slurm.pool.places import Alive
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Finish, Run, SetState
from deployments.slurm.pool.runs import PrefectRuns, marked
from deployments.slurm.pool.service import FEW_SECONDS, Asked, Service, interval_seconds, notify
from deployments.slurm.pool.worker import SUBMITTED_AT_ONCE, SlurmWorker
from storage import durable, locks
from storage.errors import BadInput

FAKE = SimpleNamespace()


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
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmWorker:
    """One that serves its pool, as far as these tests ask."""

    async def make() -> SlurmWorker:  # it wants a running event loop
        return SlurmWorker("gpu")

    made = asyncio.run(make())
    made._service = SimpleNamespace(places=SimpleNamespace(are_kept=True))
    made._has_successfully_synced, made._work_queues = True, {"root"}
    return made


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A pool that this process serves, without a server."""
    monkeypatch.setenv("RATCHET_SITE", str(tmp_path / "site.yaml"))
    (tmp_path / "site.yaml").write_text(f"root: {tmp_path}\n")
    lock = locks.acquire(tmp_path / ".slurm" / "gpu" / "locks")
    made = Service("gpu", Site(root=str(tmp_path)), lock, PrefectRuns("gpu", "root", tmp_path, FAKE), FAKE)
    yield made
    made.end()


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize("call", ["get_and_submit_flow_runs", "sync_with_backend"])
@pytest.mark.parametrize("error", [httpx.ConnectError("away"), httpx.ReadTimeout("slow"), answered(503)])
def test_a_server_that_is_away_is_no_error_of_the_worker(worker, monkeypatch, call, error):
    """Prefect ends a worker whose calls fail for some minutes."""
    monkeypatch.setattr(BaseWorker, call, raising(error))
    assert not asyncio.run(getattr(worker, call)())


@pytest.mark.parametrize("call", ["get_and_submit_flow_runs", "sync_with_backend"])
def test_a_server_that_refuses_the_worker_ends_it_and_so_does_one_that_was_never_there(worker, monkeypatch, call):
    monkeypatch.setattr(BaseWorker, call, raising(answered(401)))
    with pytest.raises(httpx.HTTPStatusError):
        asyncio.run(getattr(worker, call)())
    worker._has_successfully_synced = False
    monkeypatch.setattr(BaseWorker, call, raising(httpx.ConnectError("away")))
    with pytest.raises(httpx.ConnectError):
        asyncio.run(getattr(worker, call)())


@pytest.mark.parametrize("are_kept", [False, True])
def test_no_run_is_taken_before_a_poll_has_said_how_many_may_come(worker, monkeypatch, are_kept):
    """A worker that had just started took three runs where SLURM takes one job, half a second before it knew that."""

    async def due(_: SlurmWorker) -> list[str]:
        return ["due"]

    monkeypatch.setattr(BaseWorker, "get_and_submit_flow_runs", due)
    worker._service = SimpleNamespace(places=SimpleNamespace(are_kept=are_kept))
    assert asyncio.run(worker.get_and_submit_flow_runs()) == (["due"] if are_kept else [])


def test_a_place_that_a_poll_found_free_is_given_at_once_and_before_anybody_is_told_to_wait(worker, monkeypatch):
    """Prefect itself asks for runs every ten seconds only."""
    done: list[str] = []

    async def of_prefect(_: SlurmWorker) -> list[str]:
        done.append("submit")
        return []

    async def wait(service: Any) -> None:
        worker._watching.cancel()
        await anyio.sleep(0)

    async def serving(site: Any) -> Any:
        return worker._service

    service = SimpleNamespace(poll=lambda: done.append("poll"), tell=lambda: done.append("tell"))
    worker._service = SimpleNamespace(**vars(worker._service) | vars(service))
    monkeypatch.setattr(BaseWorker, "get_and_submit_flow_runs", of_prefect)
    monkeypatch.setattr(worker, "_serving", serving)
    monkeypatch.setattr(worker, "_wait", wait)
    asyncio.run(worker._watch(Site(root="/runs")))
    assert done[:3] == ["poll", "submit", "tell"]


def test_few_runs_are_on_their_way_to_a_job_at_once(worker, monkeypatch):
    """Sixty at once took a server on SQLite 220 s, four at once 44 s: its connections waited for each other."""
    under_way, most, made = 0, 0, []

    async def submit(_: SlurmWorker, flow_run: str) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await anyio.sleep(0.01)
        under_way -= 1
        made.append(flow_run)

    async def all_of(runs: list[str]) -> None:
        async with anyio.create_task_group() as group:
            for run in runs:
                group.start_soon(worker._submit_run, run)

    monkeypatch.setattr(BaseWorker, "_submit_run", submit)
    asyncio.run(all_of([str(number) for number in range(20)]))
    assert most == SUBMITTED_AT_ONCE and len(made) == 20


def raising(error: Exception) -> Callable[..., Any]:
    async def call(*_: Any, **__: Any) -> None:
        raise error

    return call


@pytest.mark.parametrize("error", [httpx.ConnectError("away"), answered(500)])
def test_a_server_that_fails_while_prefect_submits_a_run_ends_no_worker_and_the_run_is_found_again(
    worker, monkeypatch, error
):
    """Prefect reads the deployment before anything of ours, in the task group that holds our own polls."""
    monkeypatch.setattr(BaseWorker, "_submit_run", raising(error))
    run: Any = SimpleNamespace(id=uuid4())
    worker._submitting_flow_run_ids.add(run.id)
    asyncio.run(worker._submit_run(run))
    assert not worker._submitting_flow_run_ids


@pytest.mark.parametrize(
    ("error", "crashed"),
    [
        (httpx.ConnectError("away"), []),
        (answered(500), []),
        (answered(404), ["crashed"]),
        (ValueError("no"), ["crashed"]),
    ],
)
def test_a_run_is_not_crashed_because_the_server_failed_while_it_was_submitted(worker, monkeypatch, error, crashed):
    """Nothing would start it again: its study would end as failed, after days perhaps."""
    proposed: list[str] = []

    async def propose(self: BaseWorker, flow_run: Any, message: str, client: Any = None) -> None:
        proposed.append("crashed")

    monkeypatch.setattr(BaseWorker, "_propose_crashed_state", propose)
    monkeypatch.setattr(worker, "job_configuration", SimpleNamespace(resolve_for_flow_run=raising(error)))
    monkeypatch.setattr(worker, "_work_pool", "gpu")
    monkeypatch.setattr(worker, "get_flow_run_logger", lambda run: logging.getLogger("ratchet.slurm"))

    class Status:
        _future = SimpleNamespace(done=lambda: False)

        def started(self, value: Any) -> None:
            pass

    async def submit() -> None:
        monkeypatch.setattr(SlurmWorker, "client", property(lambda self: None))
        run = SimpleNamespace(id=uuid4(), name="a run")
        assert await worker._submit_run_and_capture_errors(run, Status()) is error

    asyncio.run(submit())
    assert proposed == crashed


@pytest.mark.parametrize("error", [httpx.ConnectError("away"), OSError(5, "Input/output error")])
def test_a_run_that_cannot_be_read_now_is_left_for_later(worker, service, monkeypatch, error):
    """What `run` raises Prefect makes Crashed, and nothing would start it again."""

    def fails(*_: Any) -> None:
        raise error

    worker._service, worker._runs = service, service.runs
    monkeypatch.setattr(service.runs, "asked_for_by", fails)
    result = asyncio.run(
        worker.run(SimpleNamespace(name="a run", id=uuid4(), parameters={}, job_variables={}), SlurmJobConfiguration())
    )
    assert result.status_code == 0 and not result.identifier


def test_a_run_that_a_person_made_has_the_folder_of_its_stage(service, tmp_path):
    """There its records and its marker are, and the journal of all its jobs."""
    parameters = {
        "study_file": f"{tmp_path}/runs/mono/studies/robustness-s42-0123abcd.yaml",
        "stage": "train-baseline",
        "root": f"{tmp_path}/runs",
        "fingerprint": "ab" * 32,
    }
    by_hand, runs = SimpleNamespace(id=uuid4(), job_variables={}, parameters=parameters, name="by hand"), service.runs
    assert runs.asked(by_hand).folder == tmp_path / "runs/mono/train-baseline/abababababab/jobs"
    by_hand.parameters = {"anything": "else"}
    assert runs.asked(by_hand).folder == tmp_path / f"{by_hand.id}/jobs"
    by_hand.job_variables = {"folder": "/given/jobs"}
    assert runs.asked(by_hand).folder == Path("/given/jobs")


class Refusing:
    """A worker whose preflight refuses: the states that it set, and what it notified a person of."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.states: list[tuple[Any, ...]] = []
        self.notified: list[str] = []
        self.open = True
        """Whether the run is still open: else a poll has set its end."""
        self._service, self._folder = service, folder

        def set_(wish: SetState) -> bool:
            put_off = (wish.delay_seconds,) if wish.delay_seconds else ()
            self.states.append((wish.type, wish.name, wish.message, *put_off))
            return self.open

        monkeypatch.setattr(service.runs, "asked_for_by", lambda run: (self.automatic, self.message, "state"))
        monkeypatch.setattr(service.runs, "open", lambda run: Run("f", "state", "PENDING", "Pending"))
        monkeypatch.setattr(service.runs, "set_state", set_)
        monkeypatch.setattr(service, "notify", lambda name, message: self.notified.append(message))
        monkeypatch.setattr("deployments.slurm.pool.service.read_cluster", lambda: Cluster({}))

    def run(
        self, message: str = "", automatic: bool = True, study_file: str = "", **asked: Any
    ) -> list[tuple[Any, ...]]:
        """`message` is that of the newest scheduled state; `automatic`: Ratchet itself asked for the job."""
        self.message, self.automatic = message, automatic
        given = JobValues(command="work", folder=str(self._folder), **asked)
        self._service.submit(Asked("f", "a run", {"study_file": study_file}, {}, self._folder), given)
        return self.states


@pytest.fixture
def refusing(service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Refusing:
    return Refusing(service, monkeypatch, tmp_path / "runs" / "jobs")


def test_what_is_wrong_with_a_first_job_fails_the_run_and_notifies_a_person(refusing):
    ((type_, name, message),) = refusing.run("", pass_environment=["SURELY_NOT_SET"])
    assert (type_, name) == ("FAILED", "Failed") and "SURELY_NOT_SET is not set where the worker" in message
    assert refusing.notified == [message]


def test_nobody_is_notified_twice_of_what_a_poll_found_before(refusing):
    refusing.open = False
    refusing.run("", pass_environment=["SURELY_NOT_SET"])
    assert refusing.states and not refusing.notified


def test_what_is_wrong_with_a_continuation_is_waited_for(refusing, tmp_path):
    """A drained partition or a disk that is away for an hour must not end a study of days."""
    end = End("AwaitingRetry", "the time limit")
    Journal(tmp_path / "runs" / "jobs").write(Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7", end=end))
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
    Journal(tmp_path / "runs" / "jobs").write(Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7", end=end))
    ((type_, _, message),) = refusing.run("it ran out of memory", memory_gb=4)
    assert asked == [4, 6] and type_ == "FAILED"
    assert message == "a job ran out of memory, and more cannot be had here: memory_gb: no node has so much"
    assert refusing.notified == [message]


def test_a_limit_in_which_two_jobs_did_no_step_fails_the_run_and_says_which_key_to_raise(refusing, tmp_path):
    """Jobs of 60 s got their signal after 18 s, did no step three times, and named no cause."""
    end = End("AwaitingRetry", "the time limit")
    short = {"start_seconds": 25.0, "diagnosis": {"category": "time limit"}}
    Journal(tmp_path / "runs" / "jobs").write(Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7", end=end))
    (tmp_path / "runs" / "attempts").mkdir()
    for number in (1, 2):
        durable.write_json(tmp_path / "runs" / "attempts" / f"000{number}.json", {"attempt": number} | short)
    ((type_, name, message),) = refusing.run("the time limit", time_limit_minutes=1, lead_seconds=20)
    assert (type_, name) == ("FAILED", "Failed") and "Set time_limit_minutes to at least 2" in message
    assert refusing.notified == [message]


def test_what_was_done_before_the_server_went_away_is_shown(service, monkeypatch):
    entry = Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7")
    run, end = Run("f", "s", "RUNNING", "Running"), End("Failed", "a check failed")
    done = Finish(run, entry, end, SetState(run, "FAILED", "Failed", end.message))

    def poll() -> None:
        raise httpx.ConnectError("away")

    jobs = SimpleNamespace(poll=poll, done=[done], seen=[SimpleNamespace(run=run, submissions=[entry])])
    shown: list[Any] = []
    mirror = SimpleNamespace(show=lambda seen: None, show_end=lambda seen, ended: shown.append(ended.end))
    notified: list[str] = []
    monkeypatch.setattr(service, "notify", lambda name, message: notified.append(message))
    service.pool, service._shown = jobs, mirror
    with pytest.raises(httpx.ConnectError):
        service.poll()
    assert (shown, notified) == ([end], ["a check failed"])


def test_a_worker_whose_pool_was_taken_over_may_submit_nothing_and_stands_by(worker, tmp_path, monkeypatch):
    monkeypatch.setattr("deployments.slurm.pool.worker.get_client", lambda sync_client: None)
    worker._service, site = None, Site(root=str(tmp_path))
    service = asyncio.run(worker._serving(site))
    assert service is not None and service is worker._service and service.pool._ours()
    service.lock.release()
    other = locks.acquire(service.lock.directory)
    assert not service.pool._ours()
    assert asyncio.run(worker._serving(site)) is worker._service is None
    other.release()
    assert asyncio.run(worker._serving(site)) is not service
    assert worker._service is not None
    worker._service.end()


def test_the_pool_waits_for_the_runs_that_prefect_is_submitting(worker, tmp_path, monkeypatch):
    """The cells of a sweep came to the pool one after the other, and went as jobs of their own."""
    monkeypatch.setattr("deployments.slurm.pool.worker.get_client", lambda sync_client: None)
    worker._service = None
    service = asyncio.run(worker._serving(Site(root=str(tmp_path))))
    assert service is not None and not service.pool._more_come()
    worker._submitting_flow_run_ids.add(uuid4())
    assert service.pool._more_come()
    service.end()


def test_after_a_poll_in_vain_no_ended_run_is_shown_as_if_it_were_alive(service):
    class Away:
        def jobs(self) -> Any:
            raise Unreachable("away")

    shown: list[Any] = []
    service.pool = Pool(Away(), SimpleNamespace())
    service.pool.seen = [SimpleNamespace(run=Run("f", "s", "FAILED", "Failed"), submissions=[])]
    service._shown = SimpleNamespace(show=shown.append)
    service.poll()
    assert not shown


def test_each_poll_keeps_the_places_by_the_site_file_as_it_is_now(service, tmp_path):
    kept: list[tuple[int | None, Alive]] = []
    told: list[int] = []
    alive, keep = Alive(), lambda site, alive: kept.append((site.max_jobs, alive))
    seen = [SimpleNamespace(run=Run("f", "s", type_, type_), submissions=[]) for type_ in ("PENDING", "CANCELLING")]
    service.places = SimpleNamespace(keep=keep, tell=told.append)
    service._shown = SimpleNamespace(show=lambda seen: None)
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
    Journal(tmp_path / "runs" / "jobs").write(Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7", end=end))
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
    kept = tmp_path / "study.yaml"
    kept.write_text("page: x\nstudy: {execution: {resources: {all: {cpu: 1}}}}\n")
    ((_, name, message, _),) = refusing.run("", study_file=str(kept))
    assert name == "AwaitingRetry" and "did you mean 'cpus'" in message


@pytest.mark.parametrize("origin", ["person", "automatic"])
def test_who_asked_for_a_job_stands_before_what_only_put_it_off(service, origin):
    """Else a person's start that met a broken site file counts as one of three automatic attempts in vain."""
    start = datetime(2026, 11, 22, tzinfo=UTC)

    def state(minute: int, origin: Origin = "person", message: str = "", name: str = "AwaitingRetry") -> State[Any]:
        when = start + timedelta(minutes=minute)
        return State(type=StateType.SCHEDULED, name=name, message=message, timestamp=when, state_details=marked(origin))

    present = State(type=StateType.PENDING)
    put_off = [
        state(4, "put off", "the worker was away"),
        state(3, name="AwaitingConcurrencySlot"),
        state(2, "put off", "the site file is broken"),
        state(1, name="Late"),
    ]
    other: Origin = "automatic" if origin == "person" else "person"
    states = [*put_off, state(0, origin), state(-1, other), present]

    read = lambda _: SimpleNamespace(state=present)  # noqa: E731
    service.runs._client = SimpleNamespace(read_flow_run_states=lambda _: states, read_flow_run=read)
    asked = service.runs.asked_for_by(str(uuid4()))
    assert asked == (origin == "automatic", "the worker was away", str(present.id))


def test_a_person_is_notified_of_a_job_that_waits_for_one_whatever_its_message_says(service, monkeypatch):
    notified: list[str] = []
    monkeypatch.setattr(service, "notify", lambda name, message: notified.append(message))
    run = Run("f", "s", "PENDING", "Pending")
    entry = Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7")
    mirror = SimpleNamespace(show=lambda seen: None)
    jobs = SimpleNamespace(seen=[SimpleNamespace(run=run, submissions=[entry])])
    service.pool, service._shown = jobs, mirror
    advice = diagnosis.waiting("JobHeldAdmin").text
    service.show([SetState(run, "PENDING", "InfrastructurePending", advice)])
    service.show([SetState(run, "PENDING", "InfrastructurePending", "in other words", needs_person=True)])
    assert notified == ["in other words"]


@pytest.mark.parametrize(
    ("end", "walked"),
    [
        (End("Completed", "finished"), True),
        (End("Failed", "a check failed"), True),  # the table of a sweep waits for it no longer
        (End("AwaitingRetry", "the time limit"), False),
        (End("Cancelled", "scancel", again=True), False),
    ],
)
def test_the_study_of_a_stage_that_ended_is_walked_within_seconds(worker, service, end, walked):
    """Else the next stage is submitted by `advance`, up to ten minutes later."""
    run = Run("f", "s", "RUNNING", "Running", folder="/runs/mono/train/abababababab/jobs")
    entry = Submission(1, "x.1", "f", 0.0, True, 4.0, job_id="7")
    seen = [SimpleNamespace(run=run, submissions=[entry])]
    done = [Finish(run, entry, end, SetState(run, "COMPLETED", "Completed", end.message))]
    service.pool = SimpleNamespace(poll=lambda: None, done=done, seen=seen, alive=None, live={})
    service._shown = SimpleNamespace(show=lambda seen: None, show_end=lambda seen, ended: None)
    asked: list[tuple[Path, str]] = []
    service._ended = lambda run: asked.append((run.root, run.study))
    worker._walks = SimpleNamespace(look=lambda: True)
    service.poll()
    assert asked == [(Path("/runs"), "mono")] * walked
    asyncio.run(asyncio.wait_for(worker._wait(service), 4))  # what a walk has started is not left to the next poll
