"""A look that starts, on a real Prefect server: what is started, what is left alone, nothing is started twice."""

import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, Scheduled

from deployments.dag.page import Page
from deployments.dag.walk import Handle, Walk
from deployments.functions import REPORT
from deployments.slurm.cluster.client import Job, Unreachable
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission, jobs_folder
from deployments.slurm.job.variables import job_variables
from deployments.slurm.study.cancel import _cancel
from deployments.slurm.study.flow_runs import FlowRunStarter, KnownFlowRuns, Prefect, _warn_of_idle_pools, key_of, known
from deployments.slurm.study.follow import _advanced, _keep_results, final_state, follow
from deployments.slurm.study.standings import Look, Standing, Standings, Told
from deployments.slurm.study.study import SlurmStudy
from flows.command.study import stand_of
from storage import attempts, durable, generations, locks
from tasks.findings.configuration import ArmsConfig, role_of
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Diagnosis
from tasks.stage.run import Stage
from tasks.stage.study import StudyBase
from tests.deployments.requests import counted
from tests.deployments.toy import ToyConfig

FIRST = Stage("first", ToyConfig, "tests.deployments.toy:work")
SECOND = Stage("second", ToyConfig, "tests.deployments.toy:work")


class Scripted:
    """A SLURM that knows the jobs that the test says."""

    def __init__(self) -> None:
        self.known: dict[str, Job] | None = {}
        self.over: dict[str, Job] = {}

    def jobs(self) -> dict[str, Job]:
        if self.known is None:
            raise Unreachable("it is away")
        return self.known

    def accounted(self, ids: Iterable[str]) -> dict[str, Job]:
        return {id_: job for id_, job in self.over.items() if id_ in ids}


@pytest.fixture(scope="module")
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        pool = f"pool-{uuid4().hex[:8]}"
        client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        flow_id = client.create_flow(flow(lambda: None, name="stage"))
        client.create_deployment(flow_id, FIRST.needs, work_pool_name=pool, enforce_parameter_schema=False)
        yield client


class World:
    """One study of two stages, advanced as often as wanted."""

    def __init__(self, client: SyncPrefectClient, root: Path) -> None:
        self.client, self.root, self.slurm = client, root, Scripted()
        self.study = f"toy-{uuid4().hex[:8]}"  # the server is shared, and keys hold the study's name
        self.config = ToyConfig(ends="finished")
        self.site: dict[str, dict[str, object]] = {}

    def advance(self, person: bool = False, handles: Any = None, **how: Any) -> Standings:
        site = Site(root=str(self.root), **self.site)
        starter = FlowRunStarter(self.client, site, self.root / "study.yaml", self.root / ".sources" / "abc")
        look = Look(KnownFlowRuns(self.client), self.slurm, starter=starter, person=person, **how)
        return look.at(handles or self.walk().handles)

    def stands(self, person: bool = False) -> tuple[Standing, Standing]:
        walk = self.advance(person)
        first, second = (walk.standing(handle) for handle in walk.handles)
        return first, second

    def start_and_set(self, state: Any, end: End | None = None, person: bool = False) -> str:
        """Starts the first stage; its flow run, now in this state, with a job that ended so where `end` is given."""
        started = self.stands(person)[0].flow_run
        if end:
            self.entry(started, end)
        self.client.set_flow_run_state(UUID(str(started)), state, force=True)
        return started

    def shown(self) -> Standing:
        """How the first stage stands, as the status shows it."""
        walk = self.walk()
        return Look(KnownFlowRuns(self.client), self.slurm).at(walk.handles).standing(walk.handles[0])

    @property
    def first(self):
        return self.walk().handles[0]

    def walk(self):
        walk = Walk(self.root, self.study)
        first = walk(FIRST, self.config)
        walk(SECOND, self.config, given=first)
        return walk

    def entry(self, flow_run: str, end: End | None = None, number: int = 1, job_id: str | None = "7") -> Submission:
        entry = Submission(number, f"toy.{number}", flow_run, 0.0, True, 4.0, job_id=job_id, end=end)
        return Journal(jobs_folder(self.first.run)).write(entry)


@pytest.fixture
def world(client: SyncPrefectClient, tmp_path: Path) -> World:
    return World(client, tmp_path)


def test_only_what_is_ready_is_started_and_only_once(world):
    first, second = world.stands()
    assert (first.stand, first.message) == ("under way", "started") and first.flow_run
    assert second == Standing("waits", "waits for first")
    assert world.stands()[0].flow_run == first.flow_run, "a second look made a second flow run"


def test_a_run_is_given_where_it_works(world):
    world.site = {"resources": {"partition": "cpu"}, "stages": {"first": {"memory_gb": 8.0}}}
    run = world.client.read_flow_run(world.stands()[0].flow_run)
    variables = run.job_variables
    assert not {"partition", "memory_gb"} & variables.keys(), "resources are put together for each job"
    assert variables["folder"] == str(world.first.run.path / "jobs")
    assert variables["directory"] == str(world.root / ".sources" / "abc")
    assert variables["label"] == f"{world.study}-first", "a stage that has no seed names none"
    assert run.parameters == {
        "study_file": str(world.root / "study.yaml"),
        "stage": "first",
        "root": str(world.root),
        "fingerprint": world.first.run.fingerprint,
    }


@pytest.mark.parametrize("follows", ["Failed", "Cancelled"])
def test_what_was_started_again_does_not_end_as_the_job_before(world, follows):
    """Until the worker has submitted the new run's job, the journal's last word is the old one's."""
    before = world.start_and_set((Failed if follows == "Failed" else Cancelled)(), End(follows, "the cause"))
    again = world.stands(person=True)[0]
    assert again.flow_run != before
    look = world.stands()[0]
    assert (look.stand, look.flow_run) == ("under way", again.flow_run)
    world.client.set_flow_run_state(again.flow_run, Failed(message="memory_gb: too much"), force=True)
    assert world.stands()[0] == Standing("failed", "memory_gb: too much", again.flow_run)


def test_a_retry_of_the_run_before_is_seen_beside_a_newer_one_that_was_refused(world):
    before = world.start_and_set(Failed(), End("Failed", "the cause"))
    again = world.stands(person=True)[0].flow_run
    world.client.set_flow_run_state(again, Crashed(message="refused"), force=True)
    assert world.stands()[0] == Standing("failed", "refused", again)
    world.client.set_flow_run_state(before, Scheduled(), force=True)
    for person in (False, True):
        assert (world.stands(person)[0].stand, world.stands(person)[0].flow_run) == ("under way", before)


@pytest.mark.parametrize(
    ("pattern", "seeds", "label"),
    [
        ("{study}-s{seed}-{stage}", [3], "toy-s3-first"),
        ("{study}-s{seed}-{stage}", [3, 4], "toy-first"),
        ("{stage}_{seed}", [3, 4], "first_all"),
    ],
)
def test_a_job_s_name_has_the_seed_that_its_stage_depends_on(pattern, seeds, label, tmp_path):
    walk = Walk(tmp_path, "toy")
    handle = walk(FIRST, ToyConfig(ends="finished"))
    seen = SimpleNamespace(stage=handle.stage, run=handle.run, seeds=set(seeds), cell=handle.cell)
    assert job_variables(Site(root="/shared", job_name=pattern), seen, tmp_path)["label"] == label


def test_the_status_starts_nothing_and_says_what_would_be_started(world):
    assert world.shown() == Standing("ready", "starting the study starts it")
    started = world.stands()[0].flow_run
    assert world.shown().flow_run == started


def test_a_pool_that_no_worker_serves_is_told(client, tmp_path, caplog):
    caplog.set_level("WARNING", "ratchet")
    _warn_of_idle_pools(client, Site(root=str(tmp_path)))
    pool = client.read_deployment_by_name(FIRST.deployment).work_pool_name
    assert (
        f"no worker serves the pool {pool} for the root {tmp_path}: start one with `prefect worker start --pool {pool}`"
        in caplog.text
    )


def test_what_is_finished_is_not_started_and_what_reads_it_is(world):
    handle = world.first
    attempt(handle.stage, handle.config, handle.run, {})
    first, second = world.stands()
    assert first.stand == "finished" and (second.stand, second.message) == ("under way", "started")


def test_a_held_run_directory_is_left_alone(world):
    lock = locks.acquire(world.first.run.path / "locks")
    first, _ = world.stands()
    lock.release()
    assert first.stand == "under way" and "held by a live process" in first.message
    assert world.stands()[0].message == "started"


def test_a_lost_database_starts_nothing_twice_while_the_job_lives(world):
    entry = world.entry(str(uuid4()))
    world.slurm.known = {"7": Job("7", entry.name, "RUNNING")}
    assert "that this Prefect server does not know" in world.stands()[0].message
    world.slurm.known = None
    assert "that this Prefect server does not know" in world.stands()[0].message, "no answer is not: no job"
    world.slurm.known = {"7": Job("7", "of-somebody-else", "RUNNING")}
    assert world.stands()[0].message == "started"


@pytest.mark.parametrize("known_by", ["squeue", "sacct", "its log"])
def test_after_a_lost_database_a_cancelled_job_stays_cancelled_until_a_person_starts_it(world, known_by):
    """Its flow run is gone, so nobody wrote down how it ended."""
    entry = world.entry(str(uuid4()))
    ended = {"7": Job("7", entry.name, "CANCELLED", cancelled_by="1000")}
    world.slurm.known = ended if known_by == "squeue" else {}
    world.slurm.over = ended if known_by == "sacct" else {}
    if known_by == "its log":
        word = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T05:00:00 ***\n"
        Journal(jobs_folder(world.first.run)).log(entry).write_text(word)
    first, second = world.stands()
    assert (first.stand, second.stand) == ("cancelled", "waits") and "job 7" in first.message
    assert world.stands(person=True)[0].message == "started"


def test_a_run_under_way_is_attached_to_even_after_its_generation_was_raised(world):
    started = world.start_and_set(Running())
    world.entry(started)
    lock = locks.acquire(world.first.run.path / "locks")
    generations.raise_for_new_attempt(world.first.run, {}, lock, "for the test")
    lock.release()
    first, _ = world.stands()
    assert (first.stand, first.flow_run) == ("under way", started) and "job 7" in first.message


@pytest.mark.parametrize(("follows", "stand"), [("Failed", "failed"), ("Cancelled", "cancelled")])
def test_what_stopped_stays_so_until_a_person_starts_it_again(world, follows, stand):
    started = world.start_and_set((Failed if follows == "Failed" else Cancelled)(), End(follows, "the cause"))
    assert world.stands()[0] == Standing(stand, "the cause", started)
    again, _ = world.stands(person=True)
    assert (again.stand, again.message) == ("under way", "started") and again.flow_run != started
    assert "the cause" in generations.current(world.first.run)["history"][0]["reason"]
    world.entry(again.flow_run, number=2)
    assert world.stands(person=True)[0].flow_run == again.flow_run, "a person's second look began it a third time"


@pytest.mark.parametrize(("category", "name"), [("bad input", "BadInput"), ("check failed", "Failed")])
def test_a_study_ends_as_bad_input_when_a_stage_had_it(world, category, name):
    world.start_and_set(Failed(), End("Failed", "the cause", Diagnosis("error", category, "the cause")))
    walk = world.advance()
    state, message = final_state(walk)
    assert (state.type, state.name, message) == ("FAILED", name, "first: the cause")
    walk.standings[walk.handles[1].run.fingerprint] = Standing("failed", "a check", None, bad_input=False)
    assert final_state(walk)[0].name == name, "as DESIGN says, and as without SLURM"


def as_study(world: World, version: int = 1) -> SlurmStudy:
    page = Page("toy", lambda study, walk: walk(replace(FIRST, version=version), world.config), type(world.config))
    study = SimpleNamespace(name=world.study, execution=None, seed=0, model_dump=lambda mode: {"name": world.study})
    return SlurmStudy(page, study, Site(root=str(world.root)), world.root)


def test_a_cancelled_study_leaves_alone_what_another_study_wants(world):
    started = world.stands()[0].flow_run  # no job was submitted yet
    _cancel(as_study(world), set(), {world.first.run.fingerprint})
    assert world.client.read_flow_run(UUID(started)).state.name == "Scheduled"
    _cancel(as_study(world), set(), set())
    assert world.client.read_flow_run(UUID(started)).state.name == "Cancelled", "it had no job yet"


def test_a_cancelled_study_ends_what_was_started_before_a_stage_changed(world):
    started = world.stands()[0].flow_run
    _cancel(as_study(world, 2), {"/another/study.yaml"}, set())
    assert world.client.read_flow_run(UUID(started)).state.name == "Scheduled"
    _cancel(as_study(world, 2), {str(world.root / "study.yaml")}, set())
    assert world.client.read_flow_run(UUID(started)).state.name == "Cancelled"


def test_a_report_that_finds_no_metric_ends_the_study_at_the_first_finished_arm(world, monkeypatch):
    """One arm is finished, one has a job, one a flow run without a job, and one nothing; a corrected metric goes on."""
    metric = "accuracy"

    def page(study: Any, stage: Any) -> Any:
        arms = {arm: stage(FIRST, ToyConfig(ends="finished", number=number)) for number, arm in enumerate("abcd")}
        config = ArmsConfig(metric=metric, arms={arm: ["1"] for arm in arms})
        return stage(REPORT, config, **{role_of(arm, "seed", "1"): arm_ for arm, arm_ in arms.items()})

    def study() -> SlurmStudy:
        found = SlurmStudy(Page("toy", page, StudyBase), StudyBase(name=world.study), site, world.root)
        monkeypatch.setattr(found, "kept_source", lambda: world.root / ".sources" / "abc")
        return found

    site = Site(root=str(world.root))
    monkeypatch.setattr("deployments.slurm.study.flow_runs.SlurmCommands", lambda: world.slurm)
    finished, queued, waiting, _, report = study().handles
    world.advance(handles=[queued, waiting])
    entry = Submission(
        1, "toy.1", world.advance(handles=[queued]).standing(queued).flow_run or "", 0.0, True, 4.0, job_id="7"
    )
    Journal(jobs_folder(queued.run)).write(entry)
    attempt(finished.stage, finished.config, finished.run, {})
    found = _advanced(Prefect(), study(), person=True)
    refused = found.standing(report)
    assert refused.bad_input and "first " in refused.message and "has no 'accuracy' in its result" in refused.message
    assert stand_of(found.handles[-1])[1] == f"bad input: {refused.message}", "as `ratchet status` has it"
    assert [one.stand for one in _advanced(Prefect(), study(), person=False).standings.values()] == [
        "finished", "under way", "cancelled", "ready", "failed"
    ]  # fmt: skip
    assert final_state(found)[0].name == "BadInput"
    metric = "number"
    again = _advanced(Prefect(), study(), person=True)
    assert [one.stand for one in again.standings.values()] == ["finished", *["under way"] * 3, "waits"]


def test_a_retry_in_prefect_of_what_had_failed_is_attached_to(world):
    started = world.start_and_set(Running(), End("Failed", "the cause"))
    assert (world.stands()[0].stand, world.stands()[0].flow_run) == ("under way", started)


def test_a_failure_on_disk_alone_is_believed(world):
    world.config = replace_end(world.config, "check_failed")
    handle = world.first
    attempt(handle.stage, handle.config, handle.run, {})
    first, _ = world.stands()
    assert first.stand == "failed" and "weights moved" in first.message and not first.bad_input


def test_a_dispatch_after_a_failure_raises_the_generation_once_and_not_again_in_its_attempt(world):
    world.config = replace_end(world.config, "check_failed")
    handle = world.first
    attempt(handle.stage, handle.config, handle.run, {})
    assert world.stands(person=True)[0].message == "started"
    assert generations.current(handle.run)["generation"] == 1
    attempt(handle.stage, handle.config, handle.run, {})
    assert generations.current(handle.run)["generation"] == 1
    assert attempts.newest(handle.run.attempts)["end_state"] == "check_failed"


def test_a_completed_run_whose_folder_was_removed_is_done_again(world):
    started = world.start_and_set(Completed())
    again, _ = world.stands()
    assert (again.stand, again.message) == ("under way", "started") and again.flow_run != started
    world.client.set_flow_run_state(again.flow_run, Completed(), force=True)
    shutil.rmtree(world.first.run.path)
    third, _ = world.stands()
    assert third.message == "started" and third.flow_run not in (started, again.flow_run), (
        "a second time it is noticed too"
    )


def test_a_stage_that_finishes_while_the_server_is_asked_is_finished_and_keeps_its_marker(world, monkeypatch):
    started = world.stands()[0].flow_run
    world.entry(started)
    ask = KnownFlowRuns.of

    def slow(self: KnownFlowRuns, flow_run: str) -> object:
        attempt(FIRST, world.config, world.first.run, {})
        world.client.set_flow_run_state(started, Completed(), force=True)
        self._by_id[flow_run] = known(world.client.read_flow_run(flow_run))
        return ask(self, flow_run)

    monkeypatch.setattr(KnownFlowRuns, "of", slow)
    assert world.stands()[0].stand == "finished"
    monkeypatch.undo()
    assert world.stands()[0].stand == "finished" and generations.current(world.first.run)["generation"] == 0


def test_a_marker_that_nfs_does_not_show_yet_is_waited_for_and_never_deleted(world, monkeypatch):
    """A client that has just looked for it knows for up to a minute nothing of one that another host wrote."""
    started = world.stands()[0].flow_run
    assert attempt(FIRST, world.config, world.first.run, {}).end_state == "finished"
    world.client.set_flow_run_state(started, Completed(), force=True)
    marker = world.first.run.marker_file
    unseen = marker.rename(marker.with_name("unseen"))
    entry = world.entry(started, End("Completed", "finished"))
    Journal(jobs_folder(world.first.run)).write(replace(entry, ended_at=time.time()))
    first, second = world.stands()
    assert (first.stand, second.stand) == ("under way", "waits") and "does not see its marker yet" in first.message
    Journal(jobs_folder(world.first.run)).write(entry)  # that was long ago
    monkeypatch.setattr(durable, "refresh", lambda folder: unseen.exists() and unseen.rename(marker))
    first, second = world.stands()
    assert (first.stand, second.message) == ("finished", "started")
    assert generations.current(world.first.run)["generation"] == 0


def test_a_run_whose_next_job_was_refused_is_shown_as_failed_by_the_status_too(world):
    started = world.start_and_set(
        Failed(message="more cannot be had here"), End("AwaitingRetry", "it ran out of memory")
    )
    assert world.shown() == Standing("failed", "more cannot be had here", started)


def test_the_same_study_below_another_root_has_runs_of_its_own(world):
    started = world.stands()[0].flow_run
    world.root = world.root / "elsewhere"
    assert world.stands()[0].message == "started" and world.stands()[0].flow_run != started


def test_a_run_that_never_had_a_job_and_crashed_is_not_started_over_and_over(world):
    started = world.start_and_set(Crashed(message="its worker failed"))
    assert world.stands()[0] == Standing("failed", "its worker failed", started)


def test_the_results_of_a_finished_study_are_copied_once_with_their_marker(tmp_path):
    walk = Walk(tmp_path / "runs", "toy")
    last = walk(FIRST, ToyConfig(ends="finished"))
    site = Site(root=str(tmp_path / "runs"), results=str(tmp_path / "results"))
    _keep_results(last, site)
    assert not (tmp_path / "results").exists(), "there is nothing to copy yet"
    attempt(last.stage, last.config, last.run, {})
    last.check_marker()
    _keep_results(last, site)
    copy = tmp_path / "results" / f"toy-{last.run.fingerprint[:12]}"
    assert {file.name for file in copy.iterdir()} == {"COMPLETE.json", "done.txt", "result.json", "stage.json"}
    (copy / "done.txt").write_text("mine")
    _keep_results(last, site)
    assert (copy / "done.txt").read_text() == "mine"


def replace_end(config: ToyConfig, ends: str) -> ToyConfig:
    return config.model_copy(update={"ends": ends})


def test_a_folder_for_results_that_cannot_be_written_is_only_warned_of(tmp_path, caplog):
    walk = Walk(tmp_path / "runs", "toy")
    last = walk(FIRST, ToyConfig(ends="finished"))
    attempt(last.stage, last.config, last.run, {})
    last.check_marker()
    (tmp_path / "file").touch()
    _keep_results(last, Site(root=str(tmp_path), results=str(tmp_path / "file" / "below")))
    assert "could not be copied" in caplog.text and "results in the site file" in caplog.text


class Away:
    """A follower whose server does not answer, so many times; then the study stands as `advance` finds it."""

    def __init__(self, error: httpx.HTTPError, times: int, world: World | None = None) -> None:
        self.error, self.times, self.world, self.calls, self.host = error, times, world, list[str](), Prefect()

    def start(self, told: Told) -> Standings:
        return self._answer("start", told)

    def advance(self, told: Told) -> Standings:
        return self._answer("advance", told)

    def _answer(self, call: str, told: Told) -> Standings:
        self.calls.append(call)
        if len(self.calls) <= self.times or self.world is None:
            raise self.error
        found = self.world.advance()
        for handle in found.handles:
            told(handle, found.standing(handle))
        return found


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/api")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize("once", [False, True])
def test_what_will_not_pass_is_not_tried_again(once):
    with pytest.raises(httpx.HTTPStatusError):
        follow(Away(answered(404), 1), lambda *_: None, once)


@pytest.mark.parametrize("status", [408, 429, 502, 503])
def test_a_start_goes_on_when_a_busy_server_answers_again(status, world, monkeypatch):
    waited: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waited.append)  # threads of other tests sleep too
    monkeypatch.setattr("deployments.slurm.study.follow.time", clock)
    follower, told = Away(answered(status), 5, world), list[tuple[str, str]]()
    state, _ = follow(follower, lambda handle, now: told.append((handle.label, now.stand)), once=True)
    assert state.name == "AwaitingRetry" and told == [("first", "under way"), ("second", "waits")]
    assert follower.calls == ["start"] * 6 and waited == [5, 10, 20, 40, 60]


def test_a_start_that_meets_a_busy_server_for_too_long_says_how_far_it_came(monkeypatch):
    monkeypatch.setattr("deployments.slurm.study.follow.BUSY_SECONDS", -1.0)
    state, message = follow(Away(answered(503), 9), lambda *_: None, once=True)
    assert state.name == "AwaitingRetry"
    assert "busy (HTTP 503)" in message and "; 0 stages are started or finished" in message


def test_a_start_that_was_broken_off_goes_on_behind_the_stages_that_it_had_begun(world):
    """What has failed since the person asked is not begun again for the same wish."""
    started = world.start_and_set(Failed(message="its next job was refused"), person=True)

    def again(begun: frozenset[str]) -> Standing:
        handle, *_ = world.walk().handles
        return world.advance(person=True, handles=[handle], begun=begun).standing(handle)

    assert again(frozenset({world.first.run.fingerprint})).stand == "failed"
    new = again(frozenset())
    assert new.stand == "under way" and new.flow_run != started


def test_a_stage_that_somebody_else_has_started_again_since_all_were_read_is_not_started_twice(world, monkeypatch):
    started = world.start_and_set(Failed(message="so it ended"), End("Failed", "so it ended"))
    read, others = KnownFlowRuns.read, list[str]()

    def slow(self: KnownFlowRuns, handles: Iterable[Handle], ids: Iterable[str]) -> None:
        read(self, handles, ids)
        if not others:  # a second person is quicker
            monkeypatch.setattr(KnownFlowRuns, "read", read)
            others.append(world.stands(person=True)[0].flow_run)

    monkeypatch.setattr(KnownFlowRuns, "read", slow)
    mine = world.stands(person=True)[0]
    assert others[0] != started and (mine.stand, mine.flow_run) == ("under way", others[0])
    assert generations.current(world.first.run)["generation"] == 1


@pytest.mark.parametrize("at_once", [1, 5, 200])
def test_runs_are_known_by_id_and_by_key_however_many_are_asked_for_at_once(world, monkeypatch, at_once):
    monkeypatch.setattr("deployments.slurm.study.flow_runs.AT_ONCE", at_once)
    walk = Walk(world.root, world.study)
    for number in range(7):
        walk(FIRST, ToyConfig(ends=f"finished {number}"))
    found = world.advance(handles=walk.handles)
    ids = [found.standing(handle).flow_run or "" for handle in walk.handles]
    runs, keys, nowhere = KnownFlowRuns(world.client), [key_of(handle, 0) for handle in walk.handles], str(uuid4())
    with counted() as asked:
        runs._read([*ids[:6], "no id", nowhere], [*keys[1:], "no key"])
        assert sum(asked.values()) == 2 * -(-7 // at_once)
        assert [str(run.id) if (run := runs.of(id_)) else "" for id_ in ids] == ids
        assert [run.id if (run := runs.made_for(handle)) else "" for handle in walk.handles[1:]] == ids[1:]
        assert runs.of("no id") is None and runs.of(nowhere) is None
        assert sum(asked.values()) == 2 * -(-7 // at_once), "what was asked for is not asked for again"
        assert getattr(runs.made_for(walk.handles[0]), "id", "") == ids[0] and runs.of(str(uuid4())) is None
        assert sum(asked.values()) == 2 * -(-7 // at_once) + 2


def test_many_stages_are_started_and_looked_at_with_few_requests(world):
    walk, told = Walk(world.root, world.study), list[str]()
    handles = [walk(FIRST, ToyConfig(ends=f"finished {number}")) for number in range(12)]

    def tell(_: object, now: Standing) -> None:
        told.append(now.stand)

    def advance(requests: int) -> list[Standing]:
        told.clear()
        with counted() as asked:
            found = world.advance(handles=handles, told=tell)
        assert sum(asked.values()) == requests, asked
        return [found.standing(handle) for handle in handles]

    first = advance(requests=12 + 2)
    assert told == ["under way"] * 12 and len({one.flow_run for one in first}) == 12
    again = advance(requests=1)
    assert told == ["under way"] * 12 and [one.flow_run for one in again] == [one.flow_run for one in first]
    world.client.set_flow_run_state(UUID(first[0].flow_run), Failed(message="so it ended"), force=True)
    after = advance(requests=2)  # what has ended is asked for again: a person may have retried it since
    assert [one.stand for one in after] == ["failed"] + ["under way"] * 11


def test_a_server_that_is_away_is_polled_again_and_the_person_s_wish_is_kept(world, monkeypatch):
    monkeypatch.setattr("deployments.slurm.study.follow.POLL_SECONDS", 0.0)
    world.config = replace_end(world.config, "check_failed")
    attempt(world.first.stage, world.first.config, world.first.run, {})
    follower = Away(httpx.ConnectError("away"), 2, world)
    assert follow(follower, lambda *_: None)[0].name == "Failed" and follower.calls == ["start"] * 3
