"""A pool as this process serves it, while it holds the pool's lock: submits, polls, shows, notifies.

Made when the lock is taken, and dropped when it is lost; keeps nothing that the next one could not find again.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from deployments.slurm.cluster.client import Refused, SlurmCommands
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import Resources, Site, folder_of_pool, note_environment, queue_of, read_site
from deployments.slurm.job.journal import jobs_folder, run_of
from deployments.slurm.job.plan import PREFECTS_OWN, Plan, asked_automatically, asked_now, continues, time_problem
from deployments.slurm.job.preflight import require
from deployments.slurm.job.variables import Layers, SlurmJobConfiguration, kept_resources, plan_of
from deployments.slurm.pool.mirror import Beside, Mirror
from deployments.slurm.pool.places import UNDER_WAY, Places
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Action, Finish, Limits, Run, SetState
from deployments.slurm.pool.runs import PrefectRuns
from deployments.waits import end
from storage import locks
from storage.errors import BadInput
from storage.run_directory import RunDirectory
from storage.visible import visible
from tasks.stage.outcome import AWAITING_RETRY

LOG = logging.getLogger("ratchet.slurm")
NOT_YET = "cannot be submitted now: "
NOTIFY_SECONDS = 60.0
CLUSTER_SECONDS = 300.0
"""SLURM is asked again what it offers: of each kind of job, at most once in this time."""
AGAIN_SECONDS = 30.0
"""After a walk that a busy server or a disk broke off; it goes on where it was."""
WALK_SECONDS = 900.0
"""No walk takes longer but one that hangs."""


class Walks:
    """The studies of one pool that are to be walked, and the one that is: so what the end of a stage makes ready is
    started within seconds.

    A page is somebody's code, which changes while the worker runs for weeks, and may do anything: the worker imports
    none. One process at a time; what ends while a study is walked has it walked once more.
    """

    def __init__(
        self,
        start: Callable[[Path, str], subprocess.Popen[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` walks the study of this name below a root, without a name all that are there."""
        self._start, self._clock = start or _process, clock
        self._due: dict[tuple[Path, str], float] = {}
        """Time from which each study is to be walked."""
        self._walked: tuple[Path, str] = Path(), ""
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def ask(self, root: Path, study: str = "", after_seconds: float = 0.0) -> None:
        """Has the study walked: one of its stages has ended."""
        due = self._clock() + after_seconds
        self._due[root, study] = min(due, self._due.get((root, study), due))

    def look(self) -> bool:
        """Sees to the walk under way and begins the next one; True where one has ended, after which there may be
        stages to submit."""
        ended = self._process is not None and self._has_ended(self._process)
        if ended:
            self._process = None
        now = self._clock()
        due = [study for study, when in self._due.items() if when <= now]
        if self._process is None and due:
            del self._due[due[0]]
            self._walked, self._began = due[0], now
            self._process = self._start(*due[0])
        return ended

    def stop(self) -> None:
        """Ends the walk under way: whoever serves the pool next walks all studies first."""
        if self._process is not None:
            self._process.terminate()
            end(self._process)

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is None and self._clock() - self._began > WALK_SECONDS:
            LOG.warning("a walk of the studies below %s hangs, and is ended", Path(*self._walked))
            process.kill()
            end(process)
        if process.returncode is None:
            return False
        if process.returncode not in (0, AWAITING_RETRY.exit_code):
            LOG.warning("a walk of the studies below %s failed; `advance` starts what is ready", Path(*self._walked))
        elif process.returncode:
            self.ask(*self._walked, AGAIN_SECONDS)
        return True


def _process(root: Path, study: str) -> subprocess.Popen[bytes]:
    # -P: the folder where the worker was started may hold anything
    command = [sys.executable, "-P", "-m", "flows.advance", f"--root={root}", f"--study={study}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)


class Service:
    """One work pool, served by this process."""

    def __init__(
        self,
        pool: str,
        site: Site,
        lock: locks.Lock,
        clients: Callable[[], SyncPrefectClient],
        more_come: Callable[[], bool],
    ) -> None:
        """`clients` makes a client of the server; `more_come` as for `Pool`."""
        self.site, self.lock, self._folder = site, lock, folder_of_pool(site, pool)
        self._client = clients()
        self.runs = PrefectRuns(pool, queue_of(site), self.folder_of, self._client)
        self.mirror = Beside(Mirror(clients()))
        self.places = Places(self.runs, self._folder / "places-of-queue.json")
        arrays = self._folder / "arrays"
        self.pool = Pool(SlurmCommands(), self.runs, ours=self.still_serves, arrays=arrays, more_come=more_come)
        self.walks = Walks()
        self._cluster: tuple[float, Cluster] | None = None

    def begin(self) -> None:
        """Tells what a start of a study looks at, and has walked what ended while no worker watched."""
        note_environment(self._folder)
        self.runs.take_back(self._folder / "places.json")
        self.walks.ask(Path(self.site.root))

    def end(self) -> None:
        """Whoever serves the pool next begins with a walk of all studies."""
        self.walks.stop()
        if self.still_serves():
            self.lock.release()

    def still_serves(self) -> bool:
        """True where no other worker took the pool: asked before anything that could not be taken back."""
        try:
            self.lock.check()
        except locks.LockLost:
            return False
        return True

    # ------------------------------------------------------------------------------------------------- submission

    def submit(self, flow_run: FlowRun, configuration: SlurmJobConfiguration) -> str | None:
        """The job's id when SLURM gave it; else the run's state shows why there is no job, or a later poll finds it."""
        shown, may_wait = "", True  # somebody may be editing the site file or the study
        try:
            automatic, shown, state_id = self.asked_for_by(flow_run)
            self.read_site_again()
            layers = Layers(
                configuration,
                self.site,
                kept_resources(flow_run.parameters.get("study_file", ""), self.site.trust_group),
                flow_run.job_variables or {},
            )
            may_wait = False
            plan = plan_of(
                layers,
                name=flow_run.name,
                parameters=flow_run.parameters,
                own_folder=self._own_folder(flow_run),
                flow_run=str(flow_run.id),
                automatic=automatic,
                state_id=state_id,
            )
            may_wait = continues(plan)  # for a disk that is away, say; a first job fails at once, and a person is told
            self._require_runnable(plan, plan.resources)
            may_wait = False  # for memory that no node has, or time in which no job gains a step
            self._require_memory(plan)
            if problem := time_problem(plan):
                raise BadInput(problem)
            return self.pool.submit(plan)
        except (httpx.HTTPError, OSError) as error:  # the run stays Pending, and a later poll makes it Scheduled again
            LOG.warning("flow run %s: not submitted now: %s", flow_run.name, error)
        except (Refused, BadInput) as error:
            if may_wait and isinstance(error, BadInput):
                message = f"{NOT_YET}{error}"
                was_set = self.set_state(flow_run, "SCHEDULED", "AwaitingRetry", message, Limits.not_now_delay)
            else:
                message = str(error)
                was_set = self.set_state(flow_run, "FAILED", "Failed", message)
            if was_set and message != shown:  # a person was notified when it was put off for the same cause before
                self.notify(flow_run.name, str(error))
        return None

    def set_state(self, flow_run: FlowRun, type_: str, name: str, message: str, delay: float = 0.0) -> bool:
        """True where the run was still open, and is set to this state: else a poll set its end before."""
        now = self._client.read_flow_run(flow_run.id)
        if now.state is None or now.state.is_final():
            return False
        run = Run(str(now.id), str(now.state.id), now.state.type.value, now.state.name or "")
        return self.runs.set_state(SetState(run, type_, name, message, delay, "put off"))

    def asked_for_by(self, flow_run: FlowRun) -> tuple[bool, str, str]:
        """True where Ratchet itself asked for the job; the message of the newest scheduled state, which may only put it
        off; and the id of the present state, which is later than the one that `flow_run` has."""
        states = self._client.read_flow_run_states(flow_run.id)
        ours = [state for state in states if state.is_scheduled() and state.name not in PREFECTS_OWN]
        newest = max(ours, key=lambda state: state.timestamp, default=None)
        present = self._client.read_flow_run(flow_run.id).state
        return asked_automatically(states), (newest and newest.message) or "", str(present.id) if present else ""

    def read_site_again(self) -> None:
        """Takes what was edited; a root that moved only when the worker is started again, since its runs are there."""
        self.site = read_site().model_copy(update={"root": self.site.root})

    def _require_runnable(self, plan: Plan, asked: Resources) -> None:
        """BadInput when the job could not run here."""
        if self._cluster is None or time.monotonic() - self._cluster[0] > CLUSTER_SECONDS:
            self._cluster = (time.monotonic(), read_cluster())
        require(asked, self._cluster[1], plan.folder, plan.label, strict_lead=self.site.strict_lead)

    def _require_memory(self, plan: Plan) -> None:
        """BadInput when a job ran out of memory and the next one, which asks for more, could not run here."""
        memory_gb = asked_now(plan).memory_gb
        if memory_gb > plan.resources.memory_gb:
            try:  # nodes that failed are left out of it: they are taken again when there are no others
                self._require_runnable(plan, plan.resources.model_copy(update={"memory_gb": memory_gb}))
            except BadInput as error:
                raise BadInput(f"a job ran out of memory, and more cannot be had here: {error}") from None

    def folder_of(self, flow_run: FlowRun) -> Path:
        return Path((flow_run.job_variables or {}).get("folder") or self._own_folder(flow_run))

    def _own_folder(self, flow_run: FlowRun) -> Path:
        """The folder of a run that a person made without our dispatch: the stage's own, when its parameters name it."""
        asked = flow_run.parameters
        if asked.get("fingerprint") and {"root", "stage", "study_file"} <= asked.keys():
            study = Path(asked["study_file"]).parent.parent.name
            return jobs_folder(RunDirectory(Path(asked["root"]), study, asked["stage"], asked["fingerprint"]))
        return self._folder / str(flow_run.id) / "jobs"

    # ------------------------------------------------------------------------------------------------- polls

    def poll(self) -> None:
        """One poll: reconcile first, then show, then set how many may come."""
        try:
            self.pool.poll()
        finally:  # shows also what was done before the server went away
            self.show(self.pool.done)
            self._ask_for_walks(self.pool.done)
        if self.pool.alive is not None:
            with suppress(BadInput):  # somebody is editing the site file: the last good one stands
                self.read_site_again()
            self.places.keep(self.site, self.pool.alive)

    def tell(self) -> None:
        """Tells those that wait for a place why."""
        self.places.tell(sum(watched.run.type in UNDER_WAY for watched in self.pool.seen))

    def _ask_for_walks(self, actions: Iterable[Action]) -> None:
        """Asks for walks: what waited for a stage that ended, or for the last one under way, may start now."""
        for action in actions:
            if isinstance(action, Finish) and action.end.follows != "AwaitingRetry" and not action.end.again:
                with suppress(ValueError):  # a folder given by hand belongs to no study
                    run = run_of(Path(action.run.folder))
                    self.walks.ask(run.root, run.study)

    def show(self, actions: list[Action]) -> None:
        """Shows how all jobs stand, and notifies a person of what these actions ended or found."""
        ended = {
            action.run.id: replace(action.submission, end=action.end)
            for action in actions
            if isinstance(action, Finish)
        }
        names = {watched.run.id: watched.submissions[-1].name for watched in self.pool.seen if watched.submissions}
        for action in actions:
            if isinstance(action, SetState) and action.needs_person:
                self.notify(names[action.run.id], action.message)
        for watched in self.pool.seen:
            if watched.run.id in ended:
                self.mirror.show_end(watched, ended[watched.run.id])
                end = ended[watched.run.id].end
                if end is not None and end.follows == "Failed":
                    self.notify(ended[watched.run.id].name, end.message)
        if alive := [watched for watched in self.pool.seen if watched.run.id not in ended]:
            self.mirror.show(alive)

    def notify(self, name: str, message: str) -> None:
        """Notifies a person, by the site's command, of a stage that does not go on by itself."""
        if self.site.notify:
            notify(self.site.notify, f"Ratchet: {name} needs you", message)

    def cancel_at_once(self) -> None:
        """Ends the jobs of runs that are being cancelled without waiting for the next poll."""
        if cancelling := self.runs.cancelling():
            self.pool.cancel_at_once(cancelling)


def notify(shell_command: str, subject: str, message: str) -> None:
    """Runs the site's command; one that fails is only logged."""
    try:
        subprocess.run(
            shell_command,
            shell=True,
            input=visible(message),
            encoding="utf-8",
            timeout=NOTIFY_SECONDS,
            check=True,
            capture_output=True,
            env=os.environ | {"RATCHET_SUBJECT": " ".join(visible(subject).split())},
        )
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("the site's notify command failed: %s", error)
