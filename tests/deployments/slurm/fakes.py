"""A SLURM, records of runs and a stage that exist only in this process, on a clock that jumps where it is told.

They do what the real ones were seen to do: a controller that queues a job and loses its answer, that forgets what it
acknowledged and gives the id to another job, that purges ended jobs; states whose ids change with each state, people
who cancel and retry. `contract.py` says what the fake SLURM and the real one have in common.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deployments.slurm.cluster.client import Job, SlurmCommands, Unreachable, _submit_error, task_id, task_name
from deployments.slurm.job.plan import Origin
from deployments.slurm.pool.reconcile import Run, SetState
from tasks.stage.outcome import in_words

NODES, NODE_MEGABYTES, GPU_MODELS = ("n1", "n2", "n3", "n4"), 256_000, ("a100",)
NO_SUCH_NODE = "Batch job submission failed: Requested node configuration is not available"
PARTITIONS = ("", "cpu", "gpu")
FOREIGN = "notebook"
"""Name of other jobs of the same user, which have nothing to do with us."""
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Killed(BaseException):
    """The worker's process ended here."""


class ServerAway(Exception):
    """The records could not be reached: what was asked may have been done."""


class Clock:
    """The time of one world. Processes see it through clocks of their own; `wall` may jump, `now` never does."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jump = 0.0
        self.fuse: int | None = None
        """After so many more moments the worker's process ends."""

    @property
    def wall(self) -> float:
        return 1_800_000_000.0 + self.now + self.jump

    def monotonic(self) -> Callable[[], float]:
        """The clock of a new process: it begins anywhere."""
        began = self.now - 1000.0
        return lambda: self.now - began

    def moment(self, *_: object) -> None:
        """Something of the worker's has just happened: it may end here."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                self.fuse = None
                raise Killed


# --------------------------------------------------------------------------------------------------------- stage


class FakeStage:
    """What one job does in a run directory, as far as others can see it: lock, heartbeat, attempt's record, marker."""

    def __init__(self, run_directory: Path, job_id: str, job_name: str, clock: Clock) -> None:
        self._path, self._clock = str(run_directory), clock
        self._record: dict[str, object] = {"slurm_job_id": job_id, "slurm_job_name": job_name}
        self.number = 0

    @property
    def finished(self) -> bool:
        return os.path.exists(f"{self._path}/COMPLETE.json")

    def begin(self) -> None:
        for folder in ("locks", "attempts"):
            os.makedirs(f"{self._path}/{folder}", exist_ok=True)
        self.number = 1 + len(os.listdir(f"{self._path}/attempts"))
        self._write(f"locks/{self.number}.json", "{}")
        self._write(f"locks/{self.number}.alive", "{}")
        self.beat()
        self._record |= {"attempt": self.number, "started_at": self._clock.wall, "ended_at": None}
        self._note(end_state=None, exit_code=None, diagnosis=None)

    def beat(self) -> None:
        os.utime(f"{self._path}/locks/{self.number}.alive", (self._clock.now, self._clock.now))

    def end(self, end_state: str, exit_code: int) -> None:
        told = {"level": "error", "category": in_words(end_state), "summary": f"the stage ended {end_state}"}
        stops = exit_code not in (0, 75, 130)
        self._note(
            end_state=end_state,
            exit_code=exit_code,
            ended_at=self._clock.wall,
            diagnosis=told | {"detail": "", "resolution": "Look."} if stops else None,
        )
        self._write(f"locks/{self.number}.released", "")
        if end_state == "finished":
            self._write("COMPLETE.json", "{}")

    def _note(self, **facts: object) -> None:
        self._record |= facts
        self._write(f"attempts/{self.number:04d}.json", json.dumps(self._record))

    def _write(self, name: str, text: str) -> None:
        with open(f"{self._path}/{name}", "w") as file:
            file.write(text)


# --------------------------------------------------------------------------------------------------------- SLURM


@dataclass
class Fate:
    """What becomes of a job once it has a node."""

    state: str = "COMPLETED"
    exit_code: int = 0
    signal: int = 0
    reason: str = ""
    seconds: float = 10.0
    end_state: str | None = None
    """What the attempt's record says in the end; nothing when it was killed."""
    begins_after: float | None = None
    """Seconds until the attempt begins; None when the job ends before."""
    log: str = ""
    shown: str = "RUNNING"
    """What SLURM calls it meanwhile."""


@dataclass
class FakeJob:
    """A job as the controller, its processes and the accounting have it, which need not agree."""

    id: str
    name: str
    options: dict[str, str]
    text: str
    submitted: float
    starts_after: float = 0.0
    state: str = "PENDING"
    exit_code: int = 0
    signal: int = 0
    node: str = ""
    started: float | None = None
    ended: float | None = None
    fate: Fate | None = None
    stage: FakeStage | None = None
    visible_at: float = 0.0
    forgotten: bool = False
    """The controller lost it; its processes may live."""
    flushed: bool = False
    """The controller started without any state: the accounting has the job as CANCELLED, by nobody."""
    working: bool = False
    waits_for: list[FakeJob] = field(default_factory=list)
    cancelled_by: str = ""
    array: list[FakeJob] = field(default_factory=list)
    """All tasks of its array, this one too."""
    at_once: int = 0
    """So many tasks of its array run at a time."""

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def number(self) -> int:
        """Of the job, or of its array."""
        return int(self.id.partition("_")[0])


def scripted(job: FakeJob) -> Fate:
    """The fate that a script of the contract tests asks for in its last line: `exit 3` or `sleep 60`."""
    word, _, number = job.text.strip().splitlines()[-1].partition(" ")
    if word == "sleep":
        return Fate(seconds=float(number))
    code = int(number or 0)
    return Fate("FAILED" if code else "COMPLETED", code, reason="NonZeroExitCode" if code else "", seconds=1.0)


class FakeSlurm(SlurmCommands):
    """A cluster. Time passes by `advance`; `fate` says what becomes of a job when it starts."""

    def __init__(
        self,
        clock: Clock,
        fate: Callable[[FakeJob], Fate] = scripted,
        stage: Callable[[FakeJob], FakeStage] | None = None,
        rng: random.Random | None = None,
        min_job_age: float = 300.0,
        accounting: bool = False,
    ) -> None:
        self.clock, self.fate, self.stage, self.rng = clock, fate, stage, rng or random.Random(0)
        self.min_job_age, self.accounting = min_job_age, accounting
        self.kill_wait = 30.0
        self.max_array_size = 1001
        self.mood = "well"
        """`down`: nothing is done and nothing answers. `frozen`: a job is queued, and the answer is lost."""
        self.queue_seconds: Callable[[], float] = lambda: 1.0
        self.refuses: Callable[[FakeJob], str] = lambda job: ""
        self.when_queued: Callable[[FakeJob], None] = lambda job: None
        self.when_started: Callable[[FakeJob], None] = lambda job: None
        self.known: dict[str, FakeJob] = {}
        """What the controller knows, by id."""
        self.all: list[FakeJob] = []
        self.counts: dict[str, int] = {}
        self._next = 1

    # ------------------------------------------------------------------ what the worker sees (SlurmCommands)

    def submit(self, script: str) -> str:
        self._answers("submit", unless=("frozen",))
        job = self._made(script)
        if error := self._refusal(job) or self.refuses(job):
            if error == NO_SUCH_NODE:  # such a job was queued and has failed at once
                job.fate, job.state, job.signal = Fate(reason="BadConstraints"), "FAILED", 1
                job.ended = self.clock.now
                self._take(job)
            self.clock.moment()
            raise _submit_error(error)
        jobs = self._tasks(job) or [job]
        for one in jobs:
            self.queue(one)
        self.clock.moment()
        if self.mood == "frozen":
            for one in jobs:
                one.visible_at = float("inf")
            self._count("lost replies")
            raise Unreachable("Socket timed out on send/recv operation")
        return str(jobs[0].number)

    def jobs(self) -> dict[str, Job]:
        self._answers("jobs")
        return {
            job.id: self._shown(job)
            for job in self.known.values()
            if job.visible_at <= self.clock.now and self._remembered(job)
        }

    def accounted(self, ids: Iterable[str]) -> dict[str, Job]:
        if not self.accounting or self.mood != "well":
            return {}
        self._count("accounted")
        wanted = set(ids)
        return {job.id: self._shown(job) for job in self.all if job.id in wanted}  # of reused ids the newest

    def largest_array(self) -> int:
        self._answers("config")
        return self.max_array_size - 1

    def cancel(self, ids: Sequence[str]) -> None:
        if not ids:
            return
        self._answers("cancel", unless=("frozen",))
        for job in list(self.known.values()):
            if job.id in ids or str(job.number) in ids:  # the id of an array is for all of its tasks
                self._end_by_cancel(job, "worker")
        self.clock.moment()
        if self.mood == "frozen":
            raise Unreachable("Socket timed out on send/recv operation")

    # ------------------------------------------------------------------ what happens to it

    def fall(self, mood: str) -> None:
        """The controller goes down or freezes; what it had not seen to yet waits until it wakes."""
        self.mood = mood
        for job in self.known.values():
            if job.visible_at > self.clock.now:
                job.visible_at = float("inf")

    def wake(self) -> None:
        """The controller answers again, and sees to what it was asked meanwhile, some seconds later at last."""
        self.mood = "well"
        for job in self.known.values():
            if job.visible_at == float("inf"):
                job.visible_at = self.clock.now + self.rng.uniform(0, 45)

    def scancel(self, job: FakeJob) -> None:
        """A person's own scancel."""
        self._end_by_cancel(job, "person")

    def requeue(self, job: FakeJob) -> None:
        """As an operator does: the same job waits and runs once more."""
        job.started, job.state, job.fate, job.stage, job.working = None, "PENDING", None, None, False
        job.starts_after = self.clock.now + self.queue_seconds()

    def queue(self, job: FakeJob) -> None:
        """Takes a job in without any checks."""
        self._take(job)
        job.starts_after = self.clock.now + self.queue_seconds()
        self.when_queued(job)
        _, *before = job.options.get("dependency", "").split(":")
        # what is not known, and itself under an id that another one had, is satisfied
        job.waits_for = [self.known[id_] for id_ in before if id_ in self.known and id_ != job.id]
        self._count("submitted")

    def _take(self, job: FakeJob) -> None:
        """Gives it an id that no job has that the controller knows; one to all tasks of an array."""
        self.known = {id_: known for id_, known in self.known.items() if self._remembered(known)}
        if not job.array or job is job.array[0]:
            taken = {known.number for known in self.known.values()}
            while self._next in taken:
                self._next += 1
            job.id = str(self._next)
            self._next += 1
        if job.array:
            job.id = task_id(str(job.array[0].number), int(job.name.rpartition("[")[2].removesuffix("]")))
        self.known[job.id] = job
        self.all.append(job)

    def foreign(self, state: str = "COMPLETED") -> FakeJob:
        """Another job of the same user, which has nothing to do with us."""
        job = FakeJob("", FOREIGN, {}, "sleep 1", self.clock.now, state=state, started=self.clock.now, fate=Fate())
        self.queue(job)
        if state == "RUNNING":
            job.fate = Fate(seconds=100.0)
        else:
            job.ended = self.clock.now
        return job

    def lose_state(self, seconds: float = 10.0) -> list[FakeJob]:
        """The controller dies and remembers nothing of the last seconds: what it queued then is forgotten, its id is
        given again, and processes that it started may go on for a while."""
        lost = [job for job in self.known.values() if job.submitted > self.clock.now - seconds and job.live]
        for job in lost:
            del self.known[job.id]
            job.forgotten, job.flushed = True, job.number % 2 == 0
            if job.started is None:
                job.ended = self.clock.now
            elif job.fate is not None and self.rng.random() < 0.6:  # the node's daemon ends what nobody knows
                job.fate.seconds = min(job.fate.seconds, self.clock.now - job.started + self.rng.uniform(0, 30))
                job.fate.end_state = None
            elif job.fate is not None and job.fate.begins_after is not None:
                job.fate.seconds += self.rng.uniform(0, 600)
        if lost:
            self._next = min(job.number for job in lost)
        self._count("state losses")
        return lost

    def advance(self, seconds: float) -> None:
        """Lets time pass, event by event."""
        until = self.clock.now + seconds
        while True:
            coming = [(when, job) for job in self.all if job.live and (when := self._next_event(job)) <= until]
            if not coming:
                break
            when, job = min(coming, key=lambda pair: pair[0])
            self.clock.now = max(self.clock.now, when)
            self._happen(job)
        self.clock.now = until
        for job in self.all:
            if job.working and job.stage is not None and job.stage.number:
                job.stage.beat()

    def _next_event(self, job: FakeJob) -> float:
        if job.started is None:
            waits = any(before.live and not before.forgotten for before in job.waits_for)
            return float("inf") if waits or self._array_is_full(job) else job.starts_after
        if job.fate is None:
            return float("inf")
        begins = job.fate.begins_after
        if begins is not None and job.stage is not None and not job.stage.number:
            return job.started + begins
        return job.started + job.fate.seconds

    @staticmethod
    def _array_is_full(job: FakeJob) -> bool:
        return bool(job.array) and sum(one.live and one.started is not None for one in job.array) >= job.at_once

    def _happen(self, job: FakeJob) -> None:
        if job.started is None:
            excluded = job.options.get("exclude", "").split(",")
            job.node = self.rng.choice([node for node in NODES if node not in excluded])
            job.started, job.state, job.working = self.clock.now, "RUNNING", True
            job.stage = self.stage(job) if self.stage else None
            self.when_started(job)
            job.fate = self.fate(job)
        elif job.stage is not None and not job.stage.number and job.fate and job.fate.begins_after is not None:
            job.stage.begin()
        else:
            self._end(job)

    def _end(self, job: FakeJob) -> None:
        fate = job.fate
        assert fate is not None
        if job.stage is not None and job.stage.number and fate.end_state is not None:
            job.stage.end(fate.end_state, fate.exit_code)
        if fate.log and "output" in job.options:
            with Path(job.options["output"]).open("a") as log:
                log.write(fate.log)
        job.state, job.exit_code, job.signal = fate.state, fate.exit_code, fate.signal
        job.ended, job.working = self.clock.now, False

    def _end_by_cancel(self, job: FakeJob, who: str) -> None:
        if not job.live:
            return
        job.cancelled_by = job.cancelled_by or who
        if job.started is None:
            job.state, job.ended = "CANCELLED", self.clock.now
        elif job.fate is not None and job.fate.state != "CANCELLED":
            begun = job.stage is not None and bool(job.stage.number)
            left = job.started + job.fate.seconds - self.clock.now
            if begun and job.fate.end_state == "finished" and left < 3:  # it was just about to be done
                job.fate.state, job.fate.signal, job.fate.shown = "CANCELLED", 15, "COMPLETING"
                return
            saves = begun and self.rng.random() < 0.5
            job.fate = Fate(
                "CANCELLED",
                0 if not saves else 75,
                15,
                seconds=self.clock.now - job.started + self.rng.uniform(0, self.kill_wait),
                end_state="sigterm" if saves else None,
                log=f"slurmstepd: error: *** JOB {job.id} ON {job.node} CANCELLED AT 2026-11-21T19:00:12 ***\n",
                shown="COMPLETING",
            )

    # ------------------------------------------------------------------ how it is told

    def _made(self, script: str) -> FakeJob:
        lines = re.findall(r"^#SBATCH (.*)$", script, re.M)
        words = [word for line in lines for word in (shlex.split(line) if set(line) & set(" '\"\\") else [line])]
        options = {name.removeprefix("--"): value for name, _, value in (word.partition("=") for word in words)}
        return FakeJob("", options.get("job-name", "sbatch"), options, script, self.clock.now)

    def _tasks(self, job: FakeJob) -> list[FakeJob]:
        """The tasks of an array, each with a log of its own; none of another job."""
        if "array" not in job.options:
            return []
        numbers, _, at_once = job.options["array"].partition("%")
        logs = {number: job.options.get("output", "").replace("%a", number) for number in numbers.split(",")}
        tasks = [
            replace(job, name=task_name(job.name, number), options=job.options | {"output": os.path.realpath(log)})
            for number, log in logs.items()
        ]
        for task in tasks:
            task.array, task.at_once = tasks, int(at_once or len(tasks))
        return tasks

    def _refusal(self, job: FakeJob) -> str:
        if not job.text.startswith("#!"):
            return "This does not look like a batch script"
        if any(
            int(task) >= self.max_array_size
            for task in re.findall(r"\d+", job.options.get("array", "").partition("%")[0])
        ):
            return "Batch job submission failed: Invalid job array specification"
        if job.options.get("partition", "") not in PARTITIONS:
            return "Batch job submission failed: Invalid partition name specified"
        excluded = {node for node in job.options.get("exclude", "").split(",") if node}
        if excluded - set(NODES):
            return "Batch job submission failed: Invalid node name specified"
        memory = job.options.get("mem", "0M")
        too_much = int(memory[:-1]) * (1024 if memory.endswith("G") else 1) > NODE_MEGABYTES
        _, *gpu = job.options.get("gres", "gpu").split(":")
        if excluded == set(NODES) or too_much or (len(gpu) == 2 and gpu[0] not in GPU_MODELS):
            return NO_SUCH_NODE
        return ""

    def _shown(self, job: FakeJob) -> Job:
        state = job.fate.shown if job.state == "RUNNING" and job.fate else job.state
        if job.forgotten:  # nobody tells the accounting of its end; a controller without any state ends all there
            state = "CANCELLED" if job.flushed else "PENDING" if job.started is None else "RUNNING"
        reason = job.fate.reason if job.fate and not job.live else ""
        if job.state == "PENDING":
            reason = "Dependency" if self._next_event(job) == float("inf") else "Priority"
            reason = "JobArrayTaskLimit" if self._array_is_full(job) else reason
        return Job(
            job.id,
            job.name,
            state,
            reason,
            job.exit_code,
            job.signal,
            job.node,
            cancelled_by="1000" if job.cancelled_by and not job.forgotten else "",
        )

    def _remembered(self, job: FakeJob) -> bool:
        return job.ended is None or self.clock.now - job.ended <= self.min_job_age

    def _answers(self, what: str, unless: tuple[str, ...] = ()) -> None:
        self._count(what)
        self.clock.moment()
        if self.mood != "well" and self.mood not in unless:
            self._count("no answer")
            raise Unreachable("Unable to contact slurm controller (connect failure)")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


# ------------------------------------------------------------------------------------------------------- records


@dataclass
class FakeRun:
    """A run as its record keeps it."""

    id: str
    folder: str
    type: str = "SCHEDULED"
    name: str = "Scheduled"
    message: str = ""
    automatic: bool = False
    """Whether Ratchet itself asked for the next job."""
    state_id: str = "0"
    due: float = 0.0
    history: list[str] = field(default_factory=list)

    def as_run(self) -> Run:
        return Run(self.id, self.state_id, self.type, self.name, self.message, self.folder)


class FakeRecords:
    """The records, and what people do to them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.runs: dict[str, FakeRun] = {}
        self.away: Callable[[], str] = lambda: ""
        """`before` or `after` what was asked was done the answer is lost; empty: it answers."""
        self.meanwhile: Callable[[], None] = lambda: None
        """What others do between a look at the runs and a state that is set."""
        self._states = self.states_read = 0
        """The number of the newest state, and of that when the pool last read its runs."""

    def add(self, run_id: str, folder: Path) -> FakeRun:
        self.runs[run_id] = FakeRun(run_id, str(folder))
        self.put(run_id, "SCHEDULED", "Scheduled", origin="automatic")
        return self.runs[run_id]

    def put(
        self,
        run_id: str,
        type_: str,
        name: str,
        message: str = "",
        delay_seconds: float = 0.0,
        origin: Origin = "person",
    ) -> None:
        """A new state, with an id of its own."""
        run = self.runs[run_id]
        self._states += 1
        run.type, run.name, run.message, run.state_id = type_, name, message, str(self._states)
        run.due = self.clock.now + delay_seconds
        if type_ == "SCHEDULED" and origin != "put off":
            run.automatic = origin == "automatic"
        run.history.append(name)

    def cancel(self, run_id: str, at_once: bool = False) -> None:
        """Cancel in the UI: what has a job is Cancelling first; `at_once` as by the API, by force."""
        run = self.runs[run_id]
        if run.type in FINAL:
            return
        if run.type == "SCHEDULED" or at_once:
            self.put(run_id, "CANCELLED", "Cancelled")
        elif run.type != "CANCELLING":
            self.put(run_id, "CANCELLING", "Cancelling")

    def retry(self, run_id: str) -> bool:
        """`prefect flow-run retry`: from an end only."""
        if self.runs[run_id].type not in FINAL:
            return False
        self.put(run_id, "SCHEDULED", "AwaitingRetry")
        return True

    def pending(self, run_id: str, name: str) -> bool:
        """A worker's proposal: accepted from Scheduled, and from Pending when it is the same worker's next step."""
        run = self.runs[run_id]
        if run.type != "SCHEDULED" and not (run.type == "PENDING" and name == "Submitting"):
            return False
        self.put(run_id, "PENDING", name)
        return True

    def due(self) -> list[FakeRun]:
        return [run for run in self.runs.values() if run.type == "SCHEDULED" and run.due <= self.clock.now]


class FakeRuns:
    """One process's view of the records."""

    def __init__(self, server: FakeRecords) -> None:
        self._server = server
        self._others_taken_in = False

    def watched(self, also: Iterable[str]) -> list[Run]:
        self._ask("before")
        wanted = {"PENDING", "RUNNING", "CANCELLING"} | (set() if self._others_taken_in else {"CANCELLED", "CRASHED"})
        self._others_taken_in = True
        named = set(also)
        found = [run.as_run() for run in self._server.runs.values() if run.type in wanted or run.id in named]
        self._server.states_read = self._server._states
        self._server.meanwhile()
        return found

    def set_state(self, wish: SetState) -> bool:
        lost = self._ask("before")
        run = self._server.runs[wish.run.id]
        done = run.state_id == wish.run.state_id
        if done:
            self._server.put(run.id, wish.type, wish.name, wish.message, wish.delay_seconds, wish.origin)
        self._server.clock.moment()
        if lost:
            raise ServerAway
        self._server.meanwhile()
        return done

    def _ask(self, fails: str) -> str:
        self._server.clock.moment()
        away = self._server.away()
        if away == fails:
            raise ServerAway
        return away
