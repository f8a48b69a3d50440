"""A look that starts: what is started, what is left alone, nothing is started twice."""

import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deployments.dag.page import Page
from deployments.dag.walk import Walk
from deployments.functions import REPORT
from deployments.slurm.cluster.client import Job, Unreachable
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import End, Journal, Submission, jobs_folder
from deployments.slurm.pool.records import Records, record_of
from deployments.slurm.study.engine import Engine, _keep_results
from deployments.slurm.study.follow import final_state
from deployments.slurm.study.standings import Look, Standing, Standings
from deployments.slurm.study.study import SlurmStudy
from flows.command.study import stand_of
from storage import attempts, durable, generations, locks
from storage.run_directory import RunDirectory
from tasks.findings.configuration import ArmsConfig, role_of
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Diagnosis
from tasks.stage.run import Stage
from tasks.stage.study import StudyBase
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


class World:
    """One study of two stages, advanced as often as wanted."""

    def __init__(self, root: Path) -> None:
        self.root, self.slurm, self.study = root, Scripted(), "toy"
        self.config = ToyConfig(ends="finished")

    def advance(self, person: bool = False, handles: Any = None) -> Standings:
        return Look(Records(), self.slurm, starts=True, person=person).at(handles or self.walk().handles)

    @property
    def run(self) -> str:
        """Id of the first stage's run."""
        record = record_of(self.first.run)
        return record.id if record else ""

    def set(self, type_: str, message: str = "") -> None:
        """Its run is in this state from now on."""
        record = record_of(self.first.run)
        assert record
        Records().write(self.first.run, replace(record, type=type_, name=type_.capitalize(), message=message))

    def stands(self, person: bool = False) -> tuple[Standing, Standing]:
        walk = self.advance(person)
        first, second = (walk.standing(handle) for handle in walk.handles)
        return first, second

    def start_and_set(self, type_: str, end: End | None = None, message: str = "") -> str:
        """Starts the first stage; its run, now in this state, with a job that ended so where `end` is given."""
        self.stands()
        if end:
            self.entry(self.run, end)
        self.set(type_, message)
        return self.run

    def shown(self) -> Standing:
        """How the first stage stands, as the status shows it."""
        walk = self.walk()
        return Look(Records(), self.slurm).at(walk.handles).standing(walk.handles[0])

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
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_only_what_is_ready_is_started_and_only_once(world):
    first, second = world.stands()
    assert (first.stand, first.message) == ("under way", "started")
    assert second == Standing("waits", "waits for first")
    run = world.run
    world.stands()
    assert world.run == run, "a second look made a second run"


@pytest.mark.parametrize("follows", ["Failed", "Cancelled"])
def test_what_was_started_again_does_not_end_as_the_job_before(world, follows):
    """Until the new run's job is submitted, the journal's last word is the old one's."""
    before = world.start_and_set(follows.upper(), End(follows, "the cause"))
    assert world.stands(person=True)[0].stand == "under way"
    again = world.run
    assert again != before and world.stands()[0].stand == "under way" and world.run == again
    world.set("FAILED", "memory_gb: too much")
    assert world.stands()[0] == Standing("failed", "memory_gb: too much")


def test_the_status_starts_nothing_and_says_what_would_be_started(world):
    assert world.shown() == Standing("ready", "starting the study starts it") and not world.run
    world.stands()
    assert world.shown().stand == "under way"


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


def test_a_lost_record_starts_nothing_twice_while_the_job_lives(world):
    entry = world.entry(str(uuid4()))
    world.slurm.known = {"7": Job("7", entry.name, "RUNNING")}
    assert "of a run that is not known here" in world.stands()[0].message
    world.slurm.known = None
    assert "of a run that is not known here" in world.stands()[0].message, "no answer is not: no job"
    world.slurm.known = {"7": Job("7", "of-somebody-else", "RUNNING")}
    assert world.stands()[0].message == "started"


@pytest.mark.parametrize("known_by", ["squeue", "sacct", "its log"])
def test_after_a_lost_record_a_cancelled_job_stays_cancelled_until_a_person_starts_it(world, known_by):
    """Nobody wrote down how it ended."""
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
    started = world.start_and_set("RUNNING")
    world.entry(started)
    lock = locks.acquire(world.first.run.path / "locks")
    generations.raise_for_new_attempt(world.first.run, {}, lock, "for the test")
    lock.release()
    first, _ = world.stands()
    assert (first.stand, world.run) == ("under way", started) and "job 7" in first.message


@pytest.mark.parametrize(("follows", "stand"), [("Failed", "failed"), ("Cancelled", "cancelled")])
def test_what_stopped_stays_so_until_a_person_starts_it_again(world, follows, stand):
    started = world.start_and_set(follows.upper(), End(follows, "the cause"))
    assert world.stands()[0] == Standing(stand, "the cause")
    again, _ = world.stands(person=True)
    run = world.run
    assert (again.stand, again.message) == ("under way", "started") and run != started
    assert "the cause" in generations.current(world.first.run)["history"][0]["reason"]
    world.entry(run, number=2)
    assert world.stands(person=True)[0].stand == "under way" and world.run == run, "a second look began it a third time"


@pytest.mark.parametrize(("category", "name"), [("bad input", "BadInput"), ("check failed", "Failed")])
def test_a_study_ends_as_bad_input_when_a_stage_had_it(world, category, name):
    world.start_and_set("FAILED", End("Failed", "the cause", Diagnosis("error", category, "the cause")))
    walk = world.advance()
    state, message = final_state(walk)
    assert (state.type, state.name, message) == ("FAILED", name, "first: the cause")
    walk.standings[walk.handles[1].run.fingerprint] = Standing("failed", "a check", bad_input=False)
    assert final_state(walk)[0].name == name, "as DESIGN says, and as without SLURM"


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

    def advanced(person: bool) -> Standings:
        return Engine(site)._advanced(study(), lambda *_: None, person)

    site = Site(root=str(world.root))
    monkeypatch.setattr("deployments.slurm.study.engine.SlurmCommands", lambda: world.slurm)
    finished, queued, waiting, _, report = study().handles
    world.advance(handles=[queued, waiting])
    entry = Submission(1, "toy.1", record_of(queued.run).id, 0.0, True, 4.0, job_id="7")
    Journal(jobs_folder(queued.run)).write(entry)
    attempt(finished.stage, finished.config, finished.run, {})
    found = advanced(person=True)
    refused = found.standing(report)
    assert refused.bad_input and "first " in refused.message and "has no 'accuracy' in its result" in refused.message
    assert stand_of(found.handles[-1])[1] == f"bad input: {refused.message}", "as `ratchet status` has it"
    assert [one.stand for one in advanced(person=False).standings.values()] == [
        "finished", "under way", "cancelled", "ready", "failed"
    ]  # fmt: skip
    assert final_state(found)[0].name == "BadInput"
    metric = "number"
    again = advanced(person=True)
    assert [one.stand for one in again.standings.values()] == ["finished", *["under way"] * 3, "waits"]


def test_a_run_that_goes_on_after_what_had_failed_is_attached_to(world):
    started = world.start_and_set("RUNNING", End("Failed", "the cause"))
    assert world.stands()[0].stand == "under way" and world.run == started


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
    started = world.start_and_set("COMPLETED")
    assert world.stands()[0].message == "started"
    again = world.run
    assert again != started
    world.set("COMPLETED")
    shutil.rmtree(world.first.run.path)
    assert world.stands()[0].message == "started" and world.run not in (started, again)


def test_a_stage_that_finishes_during_a_look_is_finished_and_keeps_its_marker(world, monkeypatch):
    started = world.start_and_set("RUNNING")
    world.entry(started)
    ask = Records.of

    def slow(self: Records, run: RunDirectory, run_id: str) -> object:
        attempt(FIRST, world.config, world.first.run, {})
        world.set("COMPLETED")
        return ask(self, run, run_id)

    monkeypatch.setattr(Records, "of", slow)
    assert world.stands()[0].stand == "finished"
    monkeypatch.undo()
    assert world.stands()[0].stand == "finished" and generations.current(world.first.run)["generation"] == 0


def test_a_marker_that_nfs_does_not_show_yet_is_waited_for_and_never_deleted(world, monkeypatch):
    """A client that has just looked for it knows for up to a minute nothing of one that another host wrote."""
    started = world.start_and_set("RUNNING")
    assert attempt(FIRST, world.config, world.first.run, {}).end_state == "finished"
    world.set("COMPLETED")
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
    world.start_and_set("FAILED", End("AwaitingRetry", "it ran out of memory"), "more cannot be had here")
    assert world.shown() == Standing("failed", "more cannot be had here")


def test_a_run_that_never_had_a_job_and_failed_is_not_started_over_and_over(world):
    started = world.start_and_set("FAILED", message="its job was refused")
    assert world.stands()[0] == Standing("failed", "its job was refused") and world.run == started


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
