"""Seeded histories: a real Pool between the fakes, in a world where everything fails, and what must hold all the same.

A history is some steps in which anything may happen, and then a quiet end in which everything answers, nobody asks
for anything more, and time passes. `Broken` names what did not hold.
"""

import json
import logging
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from deployments.slurm.cluster.client import Refused
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job import plan as job_module
from deployments.slurm.job.journal import Journal
from deployments.slurm.job.plan import Plan
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import HELD, Limits
from storage import durable
from tasks.stage.outcome import stops
from tests.deployments.slurm.fakes import (
    FINAL,
    FOREIGN,
    Clock,
    FakeJob,
    FakeRecords,
    FakeRun,
    FakeRuns,
    FakeSlurm,
    FakeStage,
    Fate,
    Killed,
    ServerAway,
)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where histories are played: files that never reach a disk."""
AT_ONCE = 250
"""Histories whose files are kept at a time."""
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
    "held": (0.4, _early("FAILED", HELD)),
    "no log": (0.3, _early("FAILED", 0, 53)),
}
QUIET = {"finishes": FATES["finishes"], "out of time": (1.0, FATES["out of time"][1])}


class History:
    """One world and one worker after another."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng, self.folder, self.clock, self.tally = random.Random(seed), folder, Clock(), Counter[str]()
        rng = self.rng
        self.server = FakeRecords(self.clock)
        self.slurm = FakeSlurm(
            self.clock, self._fate, self._stage, rng, rng.choice((100.0, 300.0)), accounting=rng.random() < 0.4
        )
        self.slurm.queue_seconds = lambda: 1.0 if self.quiet else rng.choice((0.0, 1.0, 5.0, 60.0, 300.0))
        self.slurm.when_queued, self.slurm.when_started = self._queued, self._started
        self.slurm.refuses = self._refuses
        self.server.meanwhile = lambda: self._people() if not self.quiet and rng.random() < 0.04 else None
        self.quiet = False
        self.fates: dict[str, str] = {}
        self.wished: dict[str, list[tuple[float, str]]] = {}
        self.stopped: dict[str, float] = {}
        """When a run was refused by SLURM, or by a worker that stumbled before it submitted anything."""
        self.stumbled: dict[str, float] = {}
        self.owner: dict[str, FakeRun] = {}
        self.looks: list[float] = []
        """When the worker looked at everything and was answered."""
        self.array_tasks = 2 if seed % 9 in (1, 4) else None
        stages = rng.choice((1, 1, 1, 1, 2))
        for number in range(2 if self.array_tasks else stages):
            self._add(folder / f"stage{number}" / "jobs")
        self.restart()

    def live_through(self) -> Counter[str]:
        """Plays it to its end; raises Broken."""
        for _ in range(self.rng.randint(4, 8)):
            self.slurm.advance(self.rng.choice(STEPS))
            self._trouble()
            if self.rng.random() < 0.85:
                self.pick_up()
            if self.rng.random() < 0.85:
                self._worker(self._look)
        self.settle()
        if self.rng.random() < 0.15:  # whatever it was: a person retries, and now it goes on to its end
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
        self.pool = Pool(self.slurm, self.runs, LIMITS, self.clock.monotonic(), arrays=self.folder / "arrays")

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
        automatic = run.automatic
        if not self.server.pending(run.id, "Pending"):
            return
        self._window()
        self.server.pending(run.id, "Submitting")
        self._window()
        if self._stumbles(run):
            return
        plan = Plan(
            *(run.id, Path(run.folder), "toy", ["work"], self.folder, RESOURCES, {}, automatic, run.state_id),
            self.array_tasks,
            "/runs/toys/studies/toy-s1-abc.yaml",
            "toy",
        )
        try:
            self.pool.submit(plan)
        except Refused as error:
            if run.type not in FINAL:
                self.server.put(run.id, "FAILED", "Failed", str(error))
            return
        self._stumbles(run)

    def _stumbles(self, run: FakeRun) -> bool:
        """An error in the worker, not in the pool: Prefect's own code calls the run Crashed."""
        if self.quiet or self.rng.random() > 0.02 or run.type != "PENDING":
            return False
        self.stumbled[run.id] = self.clock.now
        if run.id not in self.pool.live:  # nothing will ever be heard of it: a person must look
            self.stopped[run.id] = self.clock.now
        self.server.put(run.id, "CRASHED", "Crashed", "Failed to submit flow run to infrastructure")
        self.tally["called Crashed"] += 1
        return True

    def _window(self) -> None:
        """Between any two steps others go on."""
        self.clock.moment()
        if not self.quiet and self.rng.random() < 0.05:
            self._people()
        if not self.quiet and self.rng.random() < 0.05:
            self.pool.poll()

    def _look(self) -> None:
        self.pool.poll()
        if self.slurm.mood == "well":
            self.looks.append(self.clock.now)

    # --------------------------------------------------------------------------------- what happens to them

    def _trouble(self) -> None:
        rng, chance = self.rng, self.rng.random
        if chance() < 0.7:
            self.slurm.wake()
        else:
            self.slurm.fall(rng.choice(("down", "frozen", "frozen")))
        away = chance() < 0.1
        self.server.away = lambda: rng.choice(("", "before", "after")) if away and not self.quiet else ""
        self.clock.fuse = rng.randrange(40) if chance() < 0.2 else None
        if chance() < 0.05:
            self.restart()
        if chance() < 0.08:
            self.slurm.lose_state(rng.choice((3.0, 30.0)))
            if chance() < 0.8:
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
            elif what < 0.85 and run.type != "COMPLETED" and len(self.server.runs) < 4:
                self._add(Path(run.folder))  # the study is started again: a new flow run for the same stage
                self.tally["started again"] += 1
        elif what < 0.4:
            self.server.cancel(run.id, at_once=what < 0.15)
            self._wish(run, "cancels")
        elif what < 0.5:
            for job in self.slurm.known.values():
                if job.live and self._run_of(job) is run:
                    self.slurm.scancel(job)
                    self._wish(run, "scancels")

    def _add(self, folder: Path) -> None:
        run = self.server.add(f"run{len(self.server.runs)}", folder)
        self.wished[run.id] = []

    def _retry(self, run: FakeRun) -> None:
        if self.server.retry(run.id):
            self._wish(run, "retries")

    def _wish(self, run: FakeRun, what: str) -> None:
        self.wished[run.id].append((self.clock.now, what))
        self.tally[f"a person {what}"] += 1

    # --------------------------------------------------------------------------------------------- the jobs

    def _run_of(self, job: FakeJob) -> FakeRun | None:
        return self.owner.get(job.name)

    def _stage(self, job: FakeJob) -> FakeStage:
        return FakeStage(Path(self.owner[job.name].folder).parent, job.id, job.name, self.clock)

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
        if job.name == FOREIGN:
            return
        self._must(job.name not in self.owner, f"{job.name} was submitted twice")
        (run,) = self._asking(job) or [None]
        if run is None:
            raise Broken(f"{job.name} was submitted, and no journal has it")
        self.owner[job.name] = run
        if job.array:
            self.tally["tasks"] += 1
            seen = int(run.state_id) <= self.server.states_read
            self._must(run.type == "PENDING" or not seen, f"{job.name} was submitted though {run.id} is {run.type}")
        self._must_be_wished(run, job)
        for other in self.slurm.known.values():
            if other is job or not other.live or self._folder_of(other) != run.folder:
                continue
            told = f"{job.name} was submitted while {other.name} ({other.id}) is {other.state}"
            self._must(self.owner[other.name] is not run, told)
            waits = other.id in job.options.get("dependency", "").split(":")  # of another flow run of this stage
            self._must(waits, f"{job.name} does not wait for {other.name} ({other.id})")

    def _asking(self, job: FakeJob) -> list[FakeRun]:
        """Whose job this is, or is to be, by the journals; of an array all."""
        names = {job.name} | {task.name for task in self.slurm._tasks(job) if not job.array}
        folders = {Path(run.folder) for run in self.server.runs.values()}
        entries = [entry for folder in folders for entry in Journal(folder).all() if entry.name in names]
        return [self.server.runs[entry.flow_run] for entry in entries]

    def _must_be_wished(self, run: FakeRun, job: FakeJob) -> None:
        """No job goes on by itself after one that ended for a cause that stops."""
        for other in self.slurm.all:
            stopped = other.fate is not None and not other.live and stops(other.fate.end_state)
            if stopped and self.owner.get(other.name) is run:
                again = any(what == "retries" and when >= other.submitted for when, what in self.wished[run.id])
                self._must(again, f"{job.name} goes on though {other.name} ended {self.fates[other.name]}")

    def _started(self, job: FakeJob) -> None:
        run = self.owner.get(job.name)
        if run is not None and run.type in ("CANCELLING", "CANCELLED") and not job.forgotten:
            since = max(
                job.submitted, job.visible_at, *(when for when, what in self.wished[run.id] if what != "retries")
            )
            looks = sum(look > since for look in self.looks)
            self._must(
                looks < 3, f"{job.name} begins though its run was cancelled, and the worker looked {looks} times"
            )
        for other in self.slurm.all:
            if other is not job and other.working and self._folder_of(other) == self._folder_of(job):
                # which two flow runs and a controller that forgot one's job cannot know of: the stage's lock is for it
                known = self.owner[other.name] is self.owner[job.name] or not other.forgotten
                self._must(not known, f"{job.name} began to work while {other.name} works")

    def _refuses(self, job: FakeJob) -> str:
        if self.quiet or self.rng.random() > 0.02:
            return ""
        if int(job.name.rpartition(".")[2]) % 2:
            self.tally["refused for now"] += 1
            return "QOSMaxSubmitJobPerUserLimit"
        self.stopped |= {run.id: self.clock.now for run in self._asking(job)}
        self.tally["refused"] += 1
        return "Batch job submission failed: Invalid account or account/partition combination specified"

    def _folder_of(self, job: FakeJob) -> str:
        return self.owner[job.name].folder if job.name in self.owner else ""

    # ---------------------------------------------------------------------------------------------- the end

    def settle(self) -> None:
        """Everything answers, nobody wishes anything, time passes: each run must come to a true end."""
        self.quiet, self.clock.fuse = True, None
        self.slurm.wake()
        for _ in range(QUIET_STEPS):
            self.slurm.advance(QUIET_STEP)
            self.pick_up()
            self._look()
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
        if wishes and wishes[-1][1] == "cancels":  # then nothing more was asked of the jobs that had ended before
            asked = 0.0
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
            true = bool(stops) or early >= 3 or memory >= 2 or self.stopped.get(run.id, -1.0) >= asked
        else:
            true = self.stopped.get(run.id, -1.0) >= asked
        if run.type in ("CANCELLED", "FAILED"):
            true = true or self.stumbled.get(run.id, -1.0) >= asked  # the retry itself had come to nothing
        self.tally[f"ended {run.type}"] += 1
        told = f"{run.id} is {run.type} ({run.message}) after {wishes} and {[*all_fates.elements()]}, now {after}"
        self._must(true, told)

    def _must(self, holds: bool, told: str) -> None:
        if not holds:
            raise Broken(told)


@contextmanager
def _world_of(clock: Clock) -> Iterator[None]:
    """Each step of a durable write is a moment of this world, and `time.time()` its wall clock; nothing is synced."""
    before = durable.reached, durable._fsync, job_module.time
    durable.reached, durable._fsync = clock.moment, lambda path: None
    job_module.time = SimpleNamespace(time=lambda: clock.wall)
    try:
        yield
    finally:
        durable.reached, durable._fsync, job_module.time = before


def play(seed: int, root: Path) -> Counter[str]:
    """The history of this seed, in a new folder below `root`."""
    folder = Path(tempfile.mkdtemp(prefix=f"{seed}-", dir=root))
    history = History(seed, folder)
    try:
        with _world_of(history.clock):
            return history.live_through() + Counter(histories=1)
    except (Broken, AssertionError) as error:
        raise Broken(f"history {seed}: {error}") from error


def main(first: int, count: int) -> None:
    """Plays some histories and prints what happened in them, as JSON."""
    logging.disable(logging.CRITICAL)
    total = Counter[str]()
    for begin in range(first, first + count, AT_ONCE):
        root = tempfile.mkdtemp(dir=MEMORY)
        try:
            for seed in range(begin, min(begin + AT_ONCE, first + count)):
                total += play(seed, Path(root))
        finally:
            subprocess.run(["rm", "-rf", root], check=False)  # several times as fast as shutil
    sys.stdout.write(json.dumps(total))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
