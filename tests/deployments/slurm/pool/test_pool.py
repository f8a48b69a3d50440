"""The pool's own work where one line decides: what is written before what, whom a failure stops, and whom not."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.slurm.cluster.client import Job, Refused
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.journal import CANCEL_WORDS, MEMORY_WORDS, Journal, end_of
from deployments.slurm.job.plan import Plan, preview
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Finish, Limits
from deployments.slurm.pool.submissions import TASKS_AT_MOST
from storage import attempts, durable
from tests.deployments.slurm.fakes import (
    NODES,
    Clock,
    FakeJob,
    FakeRecords,
    FakeRuns,
    FakeSlurm,
    FakeStage,
    Fate,
    ServerAway,
)

WORKS = Fate("COMPLETED", seconds=100.0, end_state="finished", begins_after=1.0)


class World:
    """A pool between the fakes, driven step by step."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock, self.fates = folder, Clock(), [WORKS]
        self.server = FakeRecords(self.clock)
        self.slurm = FakeSlurm(self.clock, self._fate, self._stage)
        self.pool = self.restart()

    def restart(self) -> Pool:
        self.runs = FakeRuns(self.server)
        self.pool = Pool(
            self.slurm,
            self.runs,
            Limits(),
            self.clock.monotonic(),
            arrays=self.folder / "arrays",
        )
        return self.pool

    def add(self, name: str = "flow-run", stage: str = "train") -> str:
        self.server.add(name, self.folder / stage / "jobs")
        return name

    def plan(self, name: str = "flow-run", **facts: Any) -> Plan:
        run = self.server.runs[name]
        automatic = run.automatic
        self.server.pending(name, "Pending")
        self.server.pending(name, "Submitting")
        plan = Plan(
            name,
            Path(run.folder),
            "study-train",
            ["work"],
            self.folder,
            Resources(memory_gb=4),
            automatic=automatic,
            state_id=run.state_id,
            study_file="/runs/mono/studies/toy-s1-abc.yaml",
            stage="train",
        )
        return replace(plan, **facts)

    def submit(self, name: str = "flow-run", **facts: Any) -> str | None:
        return self.pool.submit(self.plan(name, **facts))

    def journal(self, name: str = "flow-run") -> Journal:
        return Journal(Path(self.server.runs[name].folder))

    def poll(self, seconds: float = 5.0) -> list[Any]:
        self.slurm.advance(seconds)
        return self.pool.poll()

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.poll()

    def until_due(self) -> None:
        while not self.server.due():
            self.poll()

    def drive(self, rounds: int, seconds: float = 5.0) -> None:
        """Submits whenever the server asks for it, as a worker does."""
        for _ in range(rounds):
            if self.server.due():
                self.submit()
            self.poll(seconds)

    def state(self, name: str = "flow-run") -> str:
        return self.server.runs[name].name

    def _fate(self, job: FakeJob) -> Fate:
        return replace(self.fates.pop(0) if len(self.fates) > 1 else self.fates[0])

    def _stage(self, job: FakeJob) -> FakeStage:
        return FakeStage(Path(job.options["output"]).parent.parent, job.id, job.name, self.clock)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.add()
    return made


# ------------------------------------------------------------------------------------------------------------ submit


def test_a_run_goes_from_its_submission_to_its_end(world):
    assert world.submit() == "1"
    seen = []
    for _ in range(30):
        world.poll()
        seen.append(world.state())
    assert list(dict.fromkeys(seen)) == ["Running", "Completed"]
    entry = world.journal().all()[0]
    assert entry.job_id == "1" and entry.end is not None and entry.end.follows == "Completed"
    assert world.pool.live == {}


def test_the_journal_and_the_script_are_written_before_sbatch(world):
    found = []
    world.slurm.when_queued = lambda job: found.append(
        (world.journal().all()[0].name == job.name, world.journal().all()[0].job_id, job.text)
    )
    world.submit()
    entry = world.journal().all()[0]
    assert found == [(True, None, world.journal().script(entry).read_text())]


def test_the_preview_is_what_is_submitted(world):
    for _ in range(2):  # the first job, and one that continues it
        plan = world.plan()
        text = preview(plan)
        assert not world.slurm.all or "--dependency=afterany:1" in text
        world.pool.submit(plan)
        assert world.slurm.all[-1].text == text
        world.slurm.scancel(world.slurm.all[-1])
        world.poll()
        world.server.retry("flow-run")


def test_a_second_submit_while_a_job_lives_is_the_first_ones_job(world):
    assert [world.submit() for _ in range(3)] == ["1", "1", "1"]
    assert len(world.slurm.all) == len(world.journal().all()) == 1


def test_a_refused_job_fails_its_run_with_what_slurm_said_and_is_not_live(world):
    world.slurm.refuses = lambda job: "Batch job submission failed: Invalid qos specification"
    with pytest.raises(Refused, match=r"Invalid qos specification.*Correct the site file"):
        world.submit()
    end = world.journal().all()[0].end
    assert end is not None and end.follows == "Failed" and end.diagnosis.category == "refused"
    assert world.pool.live == {}
    world.poll()
    assert world.state() == "Failed", "also when the worker died before it could set it"


def test_one_job_too_many_in_the_queue_is_submitted_later_and_keeps_what_the_last_one_learned(world):
    failed = Fate("NODE_FAIL", seconds=10.0, begins_after=1.0)
    world.fates = [failed, Fate("OUT_OF_MEMORY", signal=125, seconds=10.0, begins_after=1.0), WORKS]
    third: list[float] = []

    def refuses(job: FakeJob) -> str:
        third.extend([world.clock.now] if len(world.slurm.all) == 2 else [])
        return "QOSMaxSubmitJobPerUserLimit" if 0 < len(third) <= 2 else ""

    world.slurm.refuses = refuses
    world.drive(100, 20)
    assert world.state() == "Completed" and "Failed" not in world.server.runs["flow-run"].history
    assert len(third) == 3 and third[1] - third[0] >= 300 <= third[2] - third[1]
    follows = [(entry.end.follows, entry.end.diagnosis.category) for entry in world.journal().all() if entry.end]
    full = ("AwaitingRetry", "not now")
    assert follows == [
        ("AwaitingRetry", "node failure"),
        ("AwaitingRetry", "out of memory"),
        full,
        full,
        ("Completed", "finished"),
    ]
    end = world.journal().all()[2].end
    assert end and "QOSMaxSubmitJobPerUserLimit" in end.message and "tried again every 5 minutes" in end.message
    assert world.slurm.all[-1].options["mem"] == "6144M" and world.slurm.all[-1].options["exclude"]


def test_when_the_nodes_that_failed_are_all_there_are_they_are_used_again(world):
    world.fates = [Fate("NODE_FAIL", seconds=10.0, begins_after=1.0)] * len(NODES) + [WORKS]
    excluded = []
    world.slurm.when_queued = lambda job: excluded.append(job.options.get("exclude", "").split(","))
    world.drive(200)
    assert world.state() == "Completed"
    assert [len(set(nodes) - {""}) for nodes in excluded] == [0, 1, 2, 3, 0]
    follows = [entry.end.follows for entry in world.journal().all() if entry.end]
    assert follows == ["AwaitingRetry"] * 5 + ["Completed"], "one of them was refused"
    refused = world.journal().all()[4].end
    assert refused is not None and refused.diagnosis.level == "warning"
    assert "n1, n2, n3, n4 may be used again" in refused.message


def test_excluded_nodes_of_the_plan_are_never_given_up(world):
    every = Resources(memory_gb=4, exclude=list(NODES))
    with pytest.raises(Refused, match="node configuration is not available"):
        world.submit(resources=every)


def test_a_refusal_keeps_the_memory_that_was_raised(world):
    world.fates = [Fate("OUT_OF_MEMORY", signal=125, seconds=10.0, begins_after=1.0), WORKS]
    world.submit()
    world.until_due()
    world.slurm.refuses = lambda job: "Invalid account"
    with pytest.raises(Refused):
        world.submit()
    world.slurm.refuses = lambda job: ""
    world.server.put("flow-run", "SCHEDULED", "AwaitingRetry")
    world.submit()
    assert world.slurm.all[-1].options["mem"] == "6144M"


def test_more_memory_reaches_the_next_job_and_all_later_ones(world):
    out_of_time = Fate("FAILED", 75, seconds=10.0, end_state="out_of_time", begins_after=1.0)
    world.fates = [Fate("OUT_OF_MEMORY", signal=125, seconds=10.0, begins_after=1.0), out_of_time, WORKS]
    world.drive(100)
    assert [job.options["mem"] for job in world.slurm.all] == ["4096M", "6144M", "6144M"]
    assert world.state() == "Completed"


def test_only_jobs_that_follow_by_themselves_count_as_automatic(world):
    world.fates = [Fate("TIMEOUT", seconds=10.0, begins_after=1.0)]
    world.submit()
    world.until_due()
    world.submit()
    world.slurm.scancel(world.slurm.all[-1])
    world.poll()
    world.server.retry("flow-run")
    world.submit()
    world.until_due()
    world.server.cancel("flow-run")
    world.server.retry("flow-run")
    world.submit()
    assert [entry.automatic for entry in world.journal().all()] == [True, True, False, False]
    assert ["STARTED_BY=person" in job.text for job in world.slurm.all] == [False, False, True, True]


def test_what_cannot_be_a_script_is_refused_and_not_journalled(world):
    with pytest.raises(Refused, match="cannot stand on an #SBATCH line"):
        world.submit(label="two\nlines")
    with pytest.raises(Refused, match="cannot be a variable"):
        world.submit(environment={"A;touch x": "1"})
    assert world.journal().all() == [] and world.slurm.all == []


# --------------------------------------------------------------------------------------------------- disks that fail


def failing(what: Callable[[Path], bool], error: OSError) -> Callable[..., None]:
    """A durable write that fails for the files of which `what` holds."""
    written = durable.write_bytes

    def write(path: Path, data: bytes) -> None:
        if what(path):
            raise error
        written(path, data)

    return write


def test_a_folder_that_cannot_be_written_is_an_error_and_nothing_is_submitted(world, monkeypatch):
    monkeypatch.setattr(durable, "write_bytes", failing(lambda path: True, PermissionError(13, "Permission denied")))
    with pytest.raises(Refused, match="Permission denied"):
        world.submit()
    assert world.slurm.all == []


def test_of_a_journal_that_nfs_does_not_show_in_full_the_newest_entry_is_seen(world, monkeypatch):
    """Another host served the pool until a moment ago, and this one has listed the folder before that entry."""
    world.submit()
    entry = world.journal().folder / "0001.json"
    unseen = entry.rename(entry.with_name("unseen"))
    monkeypatch.setattr(durable, "refresh", lambda folder: unseen.exists() and unseen.rename(entry))
    world.restart()
    assert world.submit() == "1" and len(world.slurm.all) == 1


@pytest.mark.parametrize(("answers", "entries"), [([False], 0), ([True, False], 1)])
def test_a_worker_that_lost_the_pool_submits_nothing(world, answers, entries):
    """Its disk hung for some minutes, and another one serves the pool: nothing that comes late may be done."""
    left = iter(answers)
    world.pool = Pool(world.slurm, world.runs, Limits(), world.clock.monotonic(), ours=lambda: next(left))
    assert world.submit() is None
    assert not world.slurm.all and len(world.journal().all()) == entries


def test_a_worker_that_lost_the_pool_does_nothing_of_what_it_had_decided(world):
    world.fates = [Fate("TIMEOUT", seconds=10.0, begins_after=1.0)]
    world.submit()
    world.pool = Pool(world.slurm, world.runs, Limits(), world.clock.monotonic(), ours=lambda: False)
    assert world.poll(60.0) == [] and world.journal().all()[0].live


def test_a_folder_of_records_that_nfs_does_not_show_at_all_is_seen_when_the_job_ends(world, monkeypatch):
    """It was searched for while the job's Python still began; a refresh of what is not there does nothing."""
    world.fates = [Fate("FAILED", 1, seconds=10.0, end_state="check_failed", begins_after=1.0)]
    world.submit()
    world.slurm.advance(60.0)
    records = world.folder / "train" / "attempts"
    unseen = records.rename(records.with_name("unseen"))
    seen_in = records.parent
    monkeypatch.setattr(
        durable, "refresh", lambda folder: folder == seen_in and unseen.exists() and unseen.rename(records)
    )
    world.poll()
    assert world.state() == "Failed"


def test_a_record_that_cannot_be_read_now_decides_nothing(world, monkeypatch):
    world.fates = [Fate("FAILED", 1, seconds=10.0, end_state="check_failed", begins_after=1.0)]
    world.submit()
    read = durable.read_json

    def away(path: Path) -> Any:
        if path.parent.name == "attempts":
            raise OSError(116, "Stale file handle")
        return read(path)

    monkeypatch.setattr(durable, "read_json", away)
    assert world.poll(60.0) == [] and world.journal().all()[0].live
    monkeypatch.setattr(durable, "read_json", read)
    world.poll()
    assert world.state() == "Failed"


def test_a_journal_that_cannot_be_read_now_starts_nothing_and_is_no_failure(world, monkeypatch):
    world.submit()
    read = durable.read_json

    def away(path: Path) -> Any:
        if path.name == "0001.json":
            raise OSError(116, "Stale file handle")
        return read(path)

    world.restart()
    monkeypatch.setattr(durable, "read_json", away)
    assert world.submit() is None
    assert world.poll() == [] and len(world.slurm.all) == 1
    monkeypatch.setattr(durable, "read_json", read)
    assert world.submit() == "1"


def test_a_job_id_that_could_not_be_noted_is_found_by_the_name(world, monkeypatch):
    calls = []

    def second(path: Path) -> bool:
        calls.append(path.name)
        return calls.count("0001.json") == 2

    monkeypatch.setattr(durable, "write_bytes", failing(second, OSError(28, "No space left on device")))
    assert world.submit() == "1"
    assert world.journal().all()[0].job_id is None
    world.poll()
    assert world.journal().all()[0].job_id == "1"


def test_the_disk_of_one_run_stops_no_other(world, monkeypatch):
    world.add("other", "evaluate")
    world.fates = [Fate("TIMEOUT", seconds=1.0, begins_after=0.5)]
    for name in ("flow-run", "other"):
        world.submit(name)
    monkeypatch.setattr(durable, "write_bytes", failing(lambda path: "/train/" in str(path), OSError(5, "I/O error")))
    world.rounds(2)
    assert world.state("other") == "AwaitingRetry"
    assert world.journal().all()[0].end is None, "and the other is polled again"
    monkeypatch.undo()
    world.poll()
    assert world.state() == "AwaitingRetry"


# ------------------------------------------------------------------------------------- a controller that is not heard


def lost(world: World) -> str:
    """The name of a job that was heard by a controller that never answered, and does not show it yet."""
    world.slurm.queue_seconds = lambda: float("inf")
    world.slurm.fall("frozen")
    assert world.submit() is None
    world.slurm.wake()
    job = world.slurm.all[-1]
    job.visible_at = float("inf")
    return job.name


def test_a_lost_answer_is_waited_for_and_then_submitted_again(world):
    name = lost(world)
    ends = []
    for _ in range(20):
        world.poll()
        ends.append(world.journal().all()[0].end)
    given_up = next(number for number, end in enumerate(ends) if end)
    assert 60 <= 5 * given_up <= 70, "from the first poll on"
    assert world.journal().all()[0].name == name and world.state() == "AwaitingRetry"


def test_a_lost_answer_is_found(world):
    name = lost(world)
    world.poll(50.0)
    world.slurm.all[-1].visible_at = 0.0
    world.poll(50.0)
    entry = world.journal().all()[0]
    assert (entry.name, entry.job_id, entry.end) == (name, "1", None)


def test_time_in_which_slurm_does_not_answer_is_no_absence(world):
    lost(world)
    for _ in range(10):
        world.poll(10.0)
        world.slurm.fall("down")
        world.poll(50.0)
        world.slurm.wake()
        world.slurm.all[-1].visible_at = float("inf")
        world.poll(10.0)
    assert world.journal().all()[0].end is None


def test_time_in_which_nobody_polls_is_little_absence(world):
    """The worker stood still, and SLURM perhaps with it."""
    lost(world)
    world.poll()
    world.poll(3600.0)
    assert world.journal().all()[0].end is None
    world.poll(20.0)
    assert world.journal().all()[0].end is not None


# ------------------------------------------------------------------------------------------------ records that fail


def test_an_end_that_could_not_be_set_is_set_later(world):
    """A run that has ended is watched only while it has a job; its end must not be forgotten when a disk is away."""
    world.fates = [Fate("TIMEOUT", seconds=10.0, begins_after=1.0)]
    world.submit()
    world.slurm.advance(60.0)
    world.server.put("flow-run", "CRASHED", "Crashed")
    answers = iter(["", "before"])
    world.server.away = lambda: next(answers, "")
    with pytest.raises(ServerAway):
        world.poll()
    assert world.journal().all()[0].end is not None
    assert world.pool.done == []
    world.poll()
    assert world.state() == "AwaitingRetry"
    (done,) = world.pool.done
    assert isinstance(done, Finish) and done.end == world.journal().all()[0].end, (
        "else nobody is notified, nor is it shown"
    )


# ------------------------------------------------------------------------------------------------------- what is asked


def test_one_call_serves_all_jobs_and_the_accounting_is_asked_for_the_missing_only(world):
    world.slurm.accounting = True
    for number in range(20):
        world.add(f"run{number}", f"stage{number}")
        world.submit(f"run{number}")
    asked: list[list[str]] = []
    accounted = world.slurm.accounted
    world.slurm.accounted = lambda ids: asked.append(sorted(ids)) or accounted(ids)
    before = world.slurm.counts.get("jobs", 0)
    world.poll()
    assert world.slurm.counts["jobs"] - before == 1 and asked == [[]]
    del world.slurm.known["7"]
    world.poll()
    assert asked[-1] == ["7"]


def test_a_cancel_is_sent_noted_first_and_not_repeated_at_every_poll(world):
    world.fates = [replace(WORKS, seconds=1000.0)]
    world.slurm.kill_wait = 500.0
    world.submit()
    world.poll()
    world.server.cancel("flow-run")
    sent: list[tuple[str, bool]] = []
    cancel = world.slurm.cancel

    def spied(ids: Any) -> None:
        sent.extend((job_id, world.journal().all()[0].cancelled) for job_id in ids)
        cancel(ids)

    world.slurm.cancel = spied
    for _ in range(4):
        world.poll(2.0)
    assert sent == [("1", True)]
    world.poll(20.0)
    assert len(sent) == 2, "a cancel that was not heard is repeated after a while"


def test_no_cancel_reaches_a_job_that_was_given_the_id_of_ours(world):
    world.fates = [replace(WORKS, seconds=1000.0)]
    world.add("other", "evaluate")
    world.submit()
    world.poll()
    world.slurm.lose_state(1000.0)
    assert world.submit("other") == "1"
    world.server.cancel("flow-run")
    while world.state() == "Cancelling":
        world.poll()
    assert world.slurm.known["1"].cancelled_by == ""
    assert world.state() in ("Cancelled", "Completed"), "the one that was forgotten may have finished"


def test_the_heartbeat_is_watched_on_our_own_clock(world):
    """File times come from other machines: a lock lives while they change, whatever their value."""
    locks = world.folder / "train" / "locks"
    locks.mkdir(parents=True)
    (locks / "1.json").touch()
    alive = locks / "1.alive"
    for when in (5e9, 0.0, 4e9):
        alive.touch()
        os.utime(alive, (when, when))
        assert world.pool._beats.lately(locks)
        world.clock.now += 59
        assert world.pool._beats.lately(locks)
    world.clock.now += 2
    assert not world.pool._beats.lately(locks)
    (locks / "2.json").touch()
    (locks / "2.alive").touch()
    assert world.pool._beats.lately(locks), "another one holds it now"
    (locks / "2.released").touch()
    assert not world.pool._beats.lately(locks)


def test_a_job_that_slurm_forgot_is_lost_only_when_its_heartbeat_stands_still(world):
    world.fates = [Fate("FAILED", signal=9, seconds=2000.0, begins_after=1.0)]
    world.submit()
    world.poll()
    del world.slurm.known["1"]
    world.rounds(300)
    assert world.state() == "Running" and world.slurm.all[0].working
    world.slurm.all[0].working = False  # its processes die with the node
    polls = 0
    while world.state() == "Running":
        world.poll()
        polls += 1
    assert world.state() == "AwaitingRetry" and 60 <= 5 * polls <= 70
    assert "no longer knows the job" in world.server.runs["flow-run"].message


def test_a_job_after_one_that_slurm_forgot_waits_for_none(world):
    """Seen: a controller that had lost its state numbered anew, and the next job waited for itself (or for others')."""
    for number in ("1", "2"):
        world.fates = [Fate("FAILED", signal=9, seconds=2000.0, begins_after=1.0)]
        world.submit()
        world.poll()
        world.slurm.all[-1].working = False
        del world.slurm.known[number]
        while world.state() == "Running":
            world.poll()
        assert world.state() == "AwaitingRetry"
    world.submit()
    assert [("--dependency" in job.text) for job in world.slurm.all] == [False] * 3


def test_an_attempts_record_is_found_by_the_jobs_name_whatever_the_clocks_say(world):
    world.fates = [Fate("FAILED", 1, seconds=10.0, end_state="check_failed", begins_after=1.0)]
    world.submit()
    world.clock.jump = -86400.0
    (action,) = world.poll(30.0)
    assert isinstance(action, Finish)
    assert action.end.follows == "Failed" and "the stage ended check_failed" in action.end.message


def test_what_is_kept_in_memory_goes_with_the_runs(world):
    for number in range(50):
        name = world.add(f"run{number}", f"stage{number}")
        world.submit(name)
        while world.state(name) != "Completed":
            world.poll(60.0)
    world.poll()
    sizes = [
        len(kept)
        for kept in (world.pool.submissions._journals, world.pool._beats._seen, world.pool._absent, world.pool.live)
    ]
    assert max(sizes) <= 2, sizes


def test_a_log_says_that_a_job_was_killed_for_memory_or_by_a_person(tmp_path):
    log = tmp_path / "log"
    assert end_of(log) == b""
    log.write_bytes(b"x" * 50_000 + b"\nslurmstepd: error: *** JOB 15 ON n1 CANCELLED AT 2026-11-21T19:00:12 ***\n")
    assert CANCEL_WORDS.search(end_of(log))
    for cause in ("DUE TO TIME LIMIT", "DUE TO PREEMPTION", "DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"):
        log.write_bytes(f"slurmstepd: error: *** JOB 15 ON n1 CANCELLED AT 2026-11-21T19:00:12 {cause} ***\n".encode())
        assert not CANCEL_WORDS.search(end_of(log)), cause
    for text in (
        b"slurmstepd: error: Exceeded job memory limit",
        b"exceeded memory limit (331550720 > 104857600), being",
    ):
        assert any(word in text for word in MEMORY_WORDS) == text.startswith(b"exceeded")


def test_a_job_of_another_user_or_study_is_none_of_ours(world):
    world.submit()
    foreign = world.slurm.foreign("FAILED")
    assert isinstance(world.slurm.jobs()[foreign.id], Job)
    assert world.poll() == [] or world.state() == "Running"
    assert len(world.journal().all()) == 1


def test_the_users_other_jobs_are_counted_without_the_ended_ones_and_the_pools_own(world):
    """SLURM counts them towards its limit too. Without an answer nothing is known of them."""
    world.submit()
    for state in ("RUNNING", "PENDING", "FAILED"):
        world.slurm.foreign(state)
    world.poll()
    alive = world.pool.alive
    assert alive and (len(alive.counted), len(alive.uncounted), len(alive.others)) == (1, 0, 2)
    world.slurm.fall("down")
    world.poll()
    assert world.pool.alive is None


def test_a_job_whose_run_is_being_cancelled_is_not_among_those_that_are_counted(world):
    world.submit()
    world.server.put("flow-run", "CANCELLING", "Cancelling", "")
    world.poll(0.0)
    assert world.pool.alive and [job.id for job in world.pool.alive.uncounted] == ["1"]
    assert not world.pool.alive.counted and not world.pool.alive.others


@pytest.mark.parametrize(
    ("asked", "limit", "measured", "lead"),
    [(120, 60, 45, 300), (120, 60, 600, 1200), (120, 5, 45, 120), (90, 5, 10, 100)],
)
def test_the_measured_time_to_save_is_added_to_the_lead_up_to_a_third_of_the_limit(world, asked, limit, measured, lead):
    world.add()
    folder = world.folder / "train"
    attempts.AttemptRecord(folder / "attempts", 1, {}, [0, 0]).note(step_seconds=measured, save_seconds=measured)
    plan = world.plan(resources=Resources(memory_gb=4, lead_seconds=asked, time_limit_minutes=limit))
    assert f"--signal=B:USR1@{lead}\n" in preview(plan)


@pytest.mark.parametrize("automatic", [True, False])
def test_a_job_is_ours_unless_a_person_retried_the_run(world, automatic):
    world.fates = [Fate("FAILED", 75, seconds=10.0, end_state="out_of_time", begins_after=1.0), WORKS]
    world.submit()
    world.until_due()
    if not automatic:
        world.server.cancel("flow-run")
        world.server.retry("flow-run")
    world.submit()
    assert [entry.automatic for entry in world.journal().all()] == [True, automatic]


def test_the_first_job_after_a_person_started_the_study_is_a_person_s(world):
    """After `no progress` an automatic one would be refused at once, and again at each new start."""
    world.server.put("flow-run", "SCHEDULED", "Scheduled")
    world.submit()
    assert not world.journal().all()[0].automatic
    world.add("other", "other")
    world.submit("other")
    assert world.journal("other").all()[0].automatic


def test_a_job_that_an_operator_requeues_waits_runs_again_and_finishes(world):
    world.submit()
    world.rounds(2)
    assert world.state() == "Running"
    world.slurm.queue_seconds = lambda: 12.0
    world.slurm.requeue(world.slurm.all[0])
    seen = []
    for _ in range(40):
        world.poll()
        seen.append(world.state())
    assert list(dict.fromkeys(seen)) == ["InfrastructurePending", "Running", "Completed"]
    assert len(world.slurm.all) == 1 and len(world.journal().all()) == 1


# ------------------------------------------------------------------------------------------------------------ arrays


def cells(world: World, count: int, array_tasks: int = 2, **facts: Any) -> list[str]:
    """So many runs of stages of their own, each asked for as a task of an array."""
    names = [world.add(f"cell{number}", f"train-{number}") for number in range(count)]
    assert [world.submit(name, array_tasks=array_tasks, **facts) for name in names] == [None] * count
    return names


def test_first_jobs_that_ask_for_the_same_are_one_array_of_which_so_many_run_at_once(world):
    names = cells(world, 5)
    assert not world.slurm.all, "they wait for each other until the next poll"
    world.poll()
    assert world.slurm.counts["submit"] == 1 and [job.id for job in world.slurm.all] == [f"1_{n}" for n in range(1, 6)]
    assert [world.journal(name).all()[0].job_id for name in names] == [f"1_{n}" for n in range(1, 6)]
    most = 0
    for _ in range(90):
        world.poll()
        most = max(most, sum(job.state == "RUNNING" for job in world.slurm.all))
        told = [run.message for run in world.server.runs.values()]
        assert (
            most < 2
            or "Completed" in map(world.state, names)
            or any("as many tasks of its array" in one for one in told)
        )
    assert most == 2 and {world.state(name) for name in names} == {"Completed"}
    for number, name in enumerate(names, 1):
        (entry,) = world.journal(name).all()
        assert entry.job_id == f"1_{number}" and entry.name.endswith(f".1[{number}]")
        attempt = durable.read_json(world.journal(name).folder.parent / "attempts" / "0001.json")
        assert attempt["slurm_job_name"] == entry.name
    assert world.pool.live == {} and world.slurm.counts["submit"] == 1


def test_every_journal_has_its_task_and_its_script_before_sbatch(world):
    found: list[list[str]] = []
    world.slurm.refuses = lambda job: (
        found.append(
            [
                one.name
                for name in ("cell0", "cell1")
                for one in world.journal(name).all()
                if world.journal(name).script(one).exists()
            ]
        )
        or ""
    )
    cells(world, 2)
    world.poll()
    (job,) = {job.text for job in world.slurm.all}
    assert found == [[one.name for one in world.slurm.all]] and "--array=1,2%2\n" in job


def test_a_log_of_a_task_is_in_the_stages_folder(world):
    world.fates = [replace(WORKS, log="hello")]
    names = cells(world, 2)
    world.rounds(30)
    for name in names:
        (entry,) = world.journal(name).all()
        assert world.journal(name).log(entry).read_text() == "hello"


def test_one_alone_and_one_that_asks_for_something_else_are_jobs_of_their_own(world):
    cells(world, 2)
    other = world.add("other", "evaluate")
    world.submit(other, array_tasks=2, resources=Resources(memory_gb=9))
    world.poll()
    assert [job.id for job in world.slurm.all] == ["1_1", "1_2", "2"]
    assert world.slurm.all[-1].text == world.journal(other).script(world.journal(other).all()[0]).read_text()


def test_a_task_that_must_go_on_is_followed_by_a_job_of_its_own(world):
    world.fates = [Fate("FAILED", 75, seconds=5.0, end_state="out_of_time", begins_after=1.0), WORKS]
    first, second = cells(world, 2, array_tasks=1)
    world.rounds(4)
    assert (world.state(first), world.state(second)) == ("AwaitingRetry", "Running")
    assert world.submit(first, array_tasks=1) == "2"
    world.rounds(45)
    assert [world.state(name) for name in (first, second)] == ["Completed"] * 2
    assert "--dependency=afterany:1_1\n" in world.slurm.all[-1].text and len(world.slurm.all) == 3


def test_a_cancel_ends_one_task_and_no_other(world):
    names = cells(world, 2)
    world.rounds(2)
    world.server.cancel(names[0])
    world.rounds(12)
    assert [world.state(name) for name in names] == ["Cancelled", "Running"]


def test_a_run_that_is_cancelled_while_it_waits_for_others_has_no_task(world):
    names = cells(world, 3)
    world.server.cancel(names[1])
    world.poll()
    assert [job.name[-3:] for job in world.slurm.all] == ["[1]", "[2]"]
    world.poll()
    assert [world.state(name) for name in names] == ["Running", "Cancelled", "Running"]


def test_a_run_that_is_asked_for_anew_waits_whatever_becomes_of_the_older_wish(world):
    """Both may come between a poll's look at the runs and its end."""
    names = cells(world, 2)
    older = world.pool.submissions.gathered
    world.server.cancel(names[0], at_once=True)
    world.server.retry(names[0])
    world.submit(names[0], array_tasks=2)
    world.pool.submissions.ungather(older)
    assert [plan.flow_run for plan in world.pool.submissions.gathered] == names[:1]


def test_an_array_whose_answer_was_lost_is_found_task_by_task(world):
    cells(world, 3)
    submit = world.slurm.submit

    def frozen(script: str) -> str:
        world.slurm.fall("frozen")
        return submit(script)

    world.slurm.submit = frozen
    world.poll()
    world.slurm.wake()
    world.restart()
    world.rounds(12)
    assert [world.journal(f"cell{n}").all()[0].job_id for n in range(3)] == ["1_1", "1_2", "1_3"]
    assert len(world.slurm.all) == 3


@pytest.mark.parametrize(
    ("refusal", "state"), [("QOSMaxSubmitJobPerUserLimit", "AwaitingRetry"), ("Invalid qos specification", "Failed")]
)
def test_an_array_that_is_refused_is_refused_to_each_of_its_runs(world, refusal, state):
    world.slurm.refuses = lambda job: refusal
    names = cells(world, 2)
    world.rounds(2)
    assert [world.state(name) for name in names] == [state] * 2
    assert all(refusal in world.server.runs[name].message for name in names)


def test_a_stage_that_two_runs_ask_for_at_once_has_one_task(world):
    """The study was started again meanwhile: the other run is asked for again, and waits for the job."""
    cells(world, 2)
    again = world.add("again", "train-0")
    world.submit(again, array_tasks=2)
    world.poll()
    assert len(world.slurm.all) == 2
    folders = [Path(job.options["output"]).parent.parent.name for job in world.slurm.all]
    assert sorted(folders) == ["train-0", "train-1"]


def test_a_run_whose_folder_has_a_job_by_now_has_no_task(world):
    cells(world, 2)
    again = world.add("again", "train-0")
    assert world.submit(again) == "1", "a worker that did not know of arrays yet, say"
    world.poll()
    assert [job.id for job in world.slurm.all] == ["1", "2"]


def test_the_disk_of_one_cell_keeps_no_other_from_its_array(world, monkeypatch):
    cells(world, 3)
    write = durable.write_bytes

    def full(path: Path, *rest: Any) -> None:
        if "train-1" in str(path):
            raise OSError(28, "No space left on device")
        write(path, *rest)

    monkeypatch.setattr(durable, "write_bytes", full)
    world.poll()
    assert [job.id for job in world.slurm.all] == ["1_1", "1_3"]
    monkeypatch.undo()
    world.rounds(40)
    assert world.state("cell1") == "AwaitingRetry", "it is asked for again"


def test_no_array_is_larger_than_clusters_take(world):
    cells(world, TASKS_AT_MOST + 2, array_tasks=500)
    world.poll()
    assert world.slurm.counts["submit"] == 2 and len(world.slurm.all) == TASKS_AT_MOST + 2


def test_a_worker_that_lost_the_pool_submits_no_array(world):
    names = cells(world, 2)
    world.pool.submissions._ours = lambda: False
    world.poll()
    assert not world.slurm.all and not world.journal(names[0]).all()


def test_an_array_is_of_one_stage_of_one_study_and_tells_both_and_each_cell(world):
    """`scancel 19` would else end two studies, and nothing in squeue said so."""
    for study, stage in (("mono", "train"), ("mono", "base"), ("inv", "train")):
        for seed in (1, 2):
            world.submit(
                world.add(f"{study}-{stage}-{seed}", f"{study}-{stage}-{seed}"),
                array_tasks=2,
                label=f"{study}-s{seed}-{stage}",
                study_file=f"/runs/{study}/studies/toy-sweep-abc.yaml",
                stage=stage,
                comment=f"{study} {stage} (seed {seed})",
            )
    world.poll()
    assert {job.name.partition(".")[0] for job in world.slurm.all} == {"mono-train", "mono-base", "inv-train"}
    for job in world.slurm.all:
        study, stage = job.name.partition(".")[0].split("-")
        cells = f"1 {study} {stage} (seed 1); 2 {study} {stage} (seed 2)"
        assert job.options["comment"] == f"{cells}; exit 75: saved, goes on"


@pytest.mark.parametrize(
    ("size", "submits", "ids"), [(4, 2, {"1_1", "1_2", "1_3", "2_1", "2_2"}), (1, 5, set("12345"))]
)
def test_arrays_are_as_large_as_the_cluster_takes_which_is_asked_once(world, size, submits, ids):
    """With MaxArraySize 4, five of five stages failed: Invalid job array specification."""
    world.slurm.max_array_size = size
    cells(world, 5)
    world.poll()
    assert {job.id for job in world.slurm.all} == ids and world.slurm.counts["submit"] == submits
    world.submit(world.add("later", "later"), array_tasks=2)
    world.poll()
    assert world.slurm.counts["config"] == 1


def test_where_no_array_is_taken_all_the_same_each_stage_is_a_job_of_its_own(world):
    world.slurm.refuses = lambda job: "Invalid job array specification" if "array" in job.options else ""
    names = cells(world, 3)
    world.rounds(2)
    assert [world.state(name) for name in names] == ["AwaitingRetry"] * 3
    assert "each stage is submitted as a job of its own" in world.server.runs[names[0]].message
    for name in names:
        world.submit(name, array_tasks=2)
    world.submit(world.add("later", "later"), array_tasks=2)
    world.submit(world.add("and-another", "and-another"), array_tasks=2)
    world.rounds(60)
    assert {world.state(name) for name in (*names, "later", "and-another")} == {"Completed"}
    assert world.slurm.counts["submit"] == 6, "an array was tried once"
