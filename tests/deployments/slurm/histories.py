"""Seeded histories: a real Pool between the fakes, in a world where everything fails, and what must hold all the same.

A history is some steps in which anything may happen, and then a quiet end in which everything answers, nobody asks
for anything more, and time passes. `Broken` names what did not hold.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from deployments.slurm.client import Refused
from deployments.slurm.pool import Plan, Pool
from deployments.slurm.reconcile import STOPS, Limits
from deployments.slurm.resources import Resources
from tests.deployments.slurm.fakes import (
    FINAL,
    Clock,
    FakeJob,
    FakePrefect,
    FakeRun,
    FakeRuns,
    FakeSlurm,
    FakeStage,
    Fate,
    Killed,
    ServerAway,
)

LIMITS = Limits(vanished=150.0)
STEPS = (1.0, 3.0, 10.0, 30.0, 80.0, 200.0, 500.0)
QUIET_STEP, QUIET_STEPS = 90.0, 60
RESOURCES = Resources(memory_gb=4, memory_cap_gb=7)
ODD_STATES = ("RUNNING", "RUNNING", "RUNNING", "SIGNALING", "SUSPENDED", "STAGE_OUT", "COMPLETING", "A_NEW_STATE")
MEMORY_TEXT = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch.\n"


class Broken(AssertionError):
    """Something that must always hold did not."""


def _begun(state: str, exit_code: int = 0, signal: int = 0, end_state: str | None = None) -> Callable[..., Fate]:
    return lambda rng: Fate(state, exit_code, signal, end_state=end_state, begins_after=rng.uniform(0, 40))


def _early(state: str, exit_code: int = 0, signal: int = 0) -> Callable[..., Fate]:
    return lambda rng: Fate(state, exit_code, signal)


FATES: dict[str, tuple[float, Callable[..., Fate]]] = {
    "finishes": (5, _begun("COMPLETED", 0, 0, "finished")),
    "out of time": (4, _begun("FAILED", 75, 0, "out_of_time")),
    "time limit, saved": (1, _begun("TIMEOUT", 0, 0, "sigterm")),
    "time limit, killed": (1.5, _begun("TIMEOUT", 0, 9)),
    "time limit, early": (0.5, _early("TIMEOUT", 0, 9)),
    "preempted": (1, _begun("PREEMPTED", 0, 9, "sigterm")),
    "preempted, early": (0.5, _early("PREEMPTED", 0, 9)),
    "node fails": (1, _begun("NODE_FAIL")),
    "node is taken down": (1, _begun("NODE_FAIL", 0, 0, "sigterm")),
    "node does not boot": (0.5, _early("BOOT_FAIL")),
    "memory": (1, _begun("OUT_OF_MEMORY", 0, 125)),
    "memory, told": (1, _begun("FAILED", 0, 9)),
    "killed": (1.5, _begun("FAILED", 137, 0)),
    "crashes": (1.5, _begun("FAILED", 1, 0, "crashed")),
    "check fails": (0.6, _begun("FAILED", 1, 0, "check_failed")),
    "not finite": (0.4, _begun("FAILED", 1, 0, "numerical_failure")),
    "bad input": (0.3, _begun("FAILED", 2, 0, "bad_input")),
    "interrupted": (0.3, _begun("FAILED", 130, 0, "interrupted")),
    "setup fails": (0.4, _early("FAILED", 71)),
    "cannot begin": (0.3, _early("FAILED", 2)),
    "crashes early": (1.5, _early("FAILED", 1)),
    "held": (0.4, _early("FAILED", 75)),
    "no log": (0.3, _early("FAILED", 0, 53)),
}
QUIET = {name: FATES[name] for name in ("finishes", "out of time")}


class History:
    """One world and one worker after another."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.clock, self.tally = random.Random(seed), folder, Clock(), Counter[str]()
        rng = self.rng
        self.server = FakePrefect(self.clock)
        self.slurm = FakeSlurm(
            self.clock, self._fate, self._stage, rng, rng.choice((100.0, 300.0)), accounting=rng.random() < 0.4
        )
        self.slurm.queue_seconds = lambda: 1.0 if self.quiet else rng.choice((0.0, 1.0, 5.0, 60.0, 300.0))
        self.slurm.when_queued, self.slurm.when_started = self._queued, self._started
        self.slurm.refuses = lambda job: "" if self.quiet or rng.random() > 0.02 else "Invalid account"
        self.server.meanwhile = lambda: self._people() if not self.quiet and rng.random() < 0.04 else None
        self.quiet = False
        self.fates: dict[str, str] = {}
        self.wished: dict[str, list[tuple[float, str]]] = {}
        self.refused: dict[str, float] = {}
        for number in range(rng.choice((1, 1, 1, 2))):
            run = self.server.add(f"run{number}-{seed}", folder / f"run{number}" / "jobs")
            self.wished[run.id] = []
        self.restart()

    def live_through(self) -> Counter[str]:
        """Plays it to its end; raises Broken."""
        for _ in range(self.rng.randint(5, 10)):
            self.slurm.advance(self.rng.choice(STEPS))
            self._trouble()
            if self.rng.random() < 0.85:
                self.pick_up()
            if self.rng.random() < 0.1:
                self._worker(self._cancel_at_once)
            if self.rng.random() < 0.85:
                self._worker(self.pool.round)
        self.settle()
        if self.rng.random() < 0.2:  # whatever it was: a person retries, and now it goes on to its end
            for run in self.server.runs.values():
                if run.type != "COMPLETED":
                    self._retry(run)
            self.settle()
            for run in self.server.runs.values():
                self._must(run.type == "COMPLETED", f"{run.id} was retried and is {run.type}: {run.message}")
        self.tally += Counter(self.slurm.counts)
        return self.tally

    # ------------------------------------------------------------------------------------------- the worker

    def restart(self) -> None:
        self.tally["workers"] += 1
        self.clock.fuse = None
        self.runs = FakeRuns(self.server)
        self.pool = Pool(self.slurm, self.runs, LIMITS, self.clock.monotonic())

    def _worker(self, act: Callable[..., object], *given: object) -> None:
        try:
            act(*given)
        except ServerAway:
            self.tally["server away"] += 1
        except Killed:
            self.tally["killed on the way"] += 1
            self.restart()

    def pick_up(self) -> None:
        for run in self.server.due():
            self._worker(self._submit, run)

    def _submit(self, run: FakeRun) -> None:
        """As prefect.workers.base does it: Pending, Submitting, and then ours."""
        asked = run.message
        if not self.server.pending(run.id, "Pending"):
            return
        self._window()
        self.server.pending(run.id, "Submitting")
        self._window()
        plan = Plan(run.id, Path(run.folder), "toy", ["work"], self.folder, RESOURCES, {}, asked, run.state_id)
        try:
            job_id = self.pool.submit(plan)
        except Refused as error:
            self.refused[run.id] = self.clock.now
            self.tally["refused"] += 1
            if run.type not in FINAL:
                self.server.put(run.id, "FAILED", "Failed", str(error))
            return
        if job_id is not None:
            run.job_id = job_id

    def _window(self) -> None:
        """Between any two steps others go on."""
        self.clock.moment()
        if not self.quiet and self.rng.random() < 0.05:
            self._people()
        if not self.quiet and self.rng.random() < 0.05:
            self.pool.round()

    def _cancel_at_once(self) -> None:
        self.pool.cancel_at_once([run.as_run() for run in self.server.runs.values() if run.type == "CANCELLING"])

    # --------------------------------------------------------------------------------- what happens to them

    def _trouble(self) -> None:
        rng, chance = self.rng, self.rng.random
        self.slurm.mood = "well" if chance() < 0.75 else rng.choice(("down", "frozen", "frozen"))
        away = chance() < 0.1
        self.server.away = lambda: rng.choice(("", "before", "after")) if away and not self.quiet else ""
        self.clock.fuse = rng.randrange(40) if chance() < 0.2 else None
        if chance() < 0.05:
            self.restart()
        if chance() < 0.06:
            self.slurm.lose_state(rng.choice((3.0, 30.0)))
            if chance() < 0.7:
                self.slurm.foreign(rng.choice(("COMPLETED", "FAILED", "RUNNING", "CANCELLED", "TIMEOUT")))
        if chance() < 0.05:
            self.clock.jump = rng.choice((-86400.0, -3600.0, 0.0, 3600.0, 86400.0))
            self.tally["clock jumps"] += 1
        if chance() < 0.3:
            self._people()

    def _people(self) -> None:
        run = self.rng.choice(list(self.server.runs.values()))
        what = self.rng.random()
        if run.type in FINAL:
            if what < 0.7:
                self._retry(run)
        elif what < 0.4:
            self.server.cancel(run.id, at_once=what < 0.15)
            self._wish(run, "cancels")
        elif what < 0.5:
            for job in self.slurm.known.values():
                if job.live and self._run_of(job) is run:
                    self.slurm.scancel(job)
                    self._wish(run, "scancels")

    def _retry(self, run: FakeRun) -> None:
        if self.server.retry(run.id):
            self._wish(run, "retries")

    def _wish(self, run: FakeRun, what: str) -> None:
        self.wished[run.id].append((self.clock.now, what))
        self.tally[f"a person {what}"] += 1

    # --------------------------------------------------------------------------------------------- the jobs

    def _run_of(self, job: FakeJob) -> FakeRun | None:
        return next((run for run in self.server.runs.values() if f"{run.folder}/" in job.text), None)

    def _stage(self, job: FakeJob) -> FakeStage:
        run = self._run_of(job)
        assert run is not None
        return FakeStage(Path(run.folder).parent, job.id, job.name, self.clock)

    def _fate(self, job: FakeJob) -> Fate:
        assert job.stage is not None
        if job.stage.finished:
            self.fates[job.name] = "was finished"
            return Fate(seconds=2.0)
        table = QUIET if self.quiet else FATES
        name = self.rng.choices(list(table), [weight for weight, _ in table.values()])[0]
        fate = table[name][1](self.rng)
        fate.seconds = (fate.begins_after or 0) + self.rng.uniform(1, 90)
        if not self.quiet:
            fate.shown = self.rng.choice(ODD_STATES)
        if name == "memory, told":
            fate.log = MEMORY_TEXT
        self.fates[job.name] = name
        self.tally[f"job: {name}"] += 1
        return fate

    def _queued(self, job: FakeJob) -> None:
        run = self._run_of(job)
        if run is None:
            return
        self._must(all(other.name != job.name for other in self.slurm.all), f"{job.name} was submitted twice")
        for other in self.slurm.known.values():
            if other.live and self._run_of(other) is run:
                raise Broken(f"{job.name} was submitted while {other.name} ({other.id}) is {other.state}")

    def _started(self, job: FakeJob) -> None:
        for other in self.slurm.all:
            if other is not job and other.working and self._run_of(other) is self._run_of(job):
                raise Broken(f"{job.name} began to work while {other.name} works")

    # ---------------------------------------------------------------------------------------------- the end

    def settle(self) -> None:
        """Everything answers, nobody wishes anything, time passes: each run must come to a true end."""
        self.quiet, self.slurm.mood, self.clock.fuse = True, "well", None
        for _ in range(QUIET_STEPS):
            self.slurm.advance(QUIET_STEP)
            self.pick_up()
            self.pool.round()
            if self._settled():
                break
        for run in self.server.runs.values():
            self._must(run.type in FINAL, f"{run.id} stays {run.type} {run.name}: {run.message}")
            self._judge(run)
        self._must(not self.pool.live, f"{[*self.pool.live]} are taken to have jobs")
        live = [job.name for job in self.slurm.known.values() if job.live and self._run_of(job)]
        self._must(not live, f"{live} live on under ended runs")

    def _settled(self) -> bool:
        if any(run.type not in FINAL for run in self.server.runs.values()):
            return False
        return not self.pool.live and not any(job.live and self._run_of(job) for job in self.slurm.all)

    def _judge(self, run: FakeRun) -> None:
        """Whether the final state agrees with what the jobs really did and with what people last wished."""
        wishes = self.wished[run.id]
        asked = max((when for when, what in wishes if what == "retries"), default=0.0)
        jobs = [job for job in self.slurm.all if self._run_of(job) is run]
        after = [self.fates.get(job.name, "") for job in jobs if job.ended is None or job.ended >= asked]
        all_fates = Counter(self.fates.get(job.name, "") for job in jobs)
        if run.type == "COMPLETED":
            true = (Path(run.folder).parent / "COMPLETE.json").exists()
        elif run.type == "CANCELLED":
            true = "interrupted" in after or any(what != "retries" and when >= asked for when, what in wishes)
        elif run.type == "FAILED":
            early = sum(all_fates[name] for name in ("crashes early", "no log", "time limit, early"))
            memory = all_fates["memory"] + all_fates["memory, told"]
            stops = {"check fails", "not finite", "bad input", "setup fails", "cannot begin"} & set(after)
            true = bool(stops) or early >= 3 or memory >= 2 or self.refused.get(run.id, -1.0) >= asked
        else:
            true = False
        self.tally[f"ended {run.type}"] += 1
        told = f"{run.id} is {run.type} ({run.message}) after {wishes} and {[*all_fates.elements()]}, now {after}"
        self._must(true, told)

    def _must(self, holds: bool, told: str) -> None:
        if not holds:
            raise Broken(told)


def play(seed: int, root: Path) -> Counter[str]:
    """The history of this seed, in a folder of its own below `root`, which is gone afterwards."""
    folder = root / str(seed)
    folder.mkdir()
    try:
        return History(seed, folder).live_through() + Counter(histories=1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


assert {"check_failed", "numerical_failure", "bad_input"} <= STOPS
