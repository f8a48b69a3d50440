"""A pool as this process serves it, while it holds the pool's lock: submits, polls, shows, notifies.

Made when the lock is taken, and dropped when it is lost; keeps nothing that the next one could not find again.
"""

import logging
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from deployments.slurm.cluster.client import Refused, SlurmCommands
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import Resources, Site, folder_of_pool, note_environment, read_site
from deployments.slurm.job.journal import Submission, run_of
from deployments.slurm.job.plan import Plan, asked_now, continues, time_problem
from deployments.slurm.job.preflight import require
from deployments.slurm.job.variables import JobValues, Layers, kept_resources, plan_of
from deployments.slurm.pool.places import UNDER_WAY, Places
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Action, Finish, Limits, Runs, Seen, SetState
from storage import locks
from storage.errors import BadInput
from storage.run_directory import RunDirectory
from storage.visible import visible

LOG = logging.getLogger("ratchet.slurm")
NOT_YET = "cannot be submitted now: "
NOTIFY_SECONDS = 60.0
CLUSTER_SECONDS = 300.0
"""SLURM is asked again what it offers: of each kind of job, at most once in this time."""

FEW_JOBS, MANY_JOBS = 20, 1000
FEW_SECONDS, MANY_SECONDS = 5.0, 30.0


def interval_seconds(live_jobs: int) -> float:
    """Between two polls of SLURM: 5 s up to 20 jobs, 30 s at 1,000, longer beyond."""
    share = max(0.0, (live_jobs - FEW_JOBS) / (MANY_JOBS - FEW_JOBS))
    return FEW_SECONDS + share * (MANY_SECONDS - FEW_SECONDS)


class Shown(Protocol):
    """Where people see how jobs stand."""

    def show(self, seen: Sequence[Seen]) -> None: ...
    def show_end(self, seen: Seen, ended: Submission) -> None: ...


@dataclass(frozen=True)
class Asked:
    """A run that is to have its next job."""

    id: str
    name: str
    parameters: dict[str, Any]
    variables: dict[str, Any]
    folder: Path


class Service:
    """One work pool, served by this process."""

    def __init__(
        self,
        pool: str,
        site: Site,
        lock: locks.Lock,
        runs: Runs,
        shown: Shown,
        more_come: Callable[[], bool] = lambda: False,
        ended: Callable[[RunDirectory], None] = lambda run: None,
    ) -> None:
        """`more_come` as for `Pool`; `ended` gets each stage that does not go on by itself: what waited for it may."""
        self.site, self.lock, self._folder = site, lock, folder_of_pool(site, pool)
        self.runs, self._shown = runs, shown
        self.places = Places(self.runs, self._folder / "places-of-queue.json")
        arrays = self._folder / "arrays"
        self.pool = Pool(SlurmCommands(), self.runs, ours=self.still_serves, arrays=arrays, more_come=more_come)
        self._ended = ended
        self._cluster: tuple[float, Cluster] | None = None

    def begin(self) -> None:
        """Tells what a start of a study looks at."""
        note_environment(self._folder)

    def end(self) -> None:
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

    def submit(self, asked: Asked, values: JobValues) -> str | None:
        """The job's id when SLURM gave it; else the run's state shows why there is no job, or a later poll finds it."""
        shown, may_wait = "", True  # somebody may be editing the site file or the study
        away: tuple[type[Exception], ...] = (*self.runs.away, OSError)
        try:
            automatic, shown, state_id = self.runs.asked_for_by(asked.id)
            self.read_site_again()
            own = kept_resources(asked.parameters.get("study_file", ""), self.site.trust_group)
            layers = Layers(values, self.site, own, asked.variables)
            may_wait = False
            plan = plan_of(
                layers,
                name=asked.name,
                parameters=asked.parameters,
                own_folder=asked.folder,
                flow_run=asked.id,
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
        except away as error:  # it stays Pending, and a later poll makes it Scheduled again
            LOG.warning("flow run %s: not submitted now: %s", asked.name, error)
        except (Refused, BadInput) as error:
            if may_wait and isinstance(error, BadInput):
                message = f"{NOT_YET}{error}"
                was_set = self._set_state(asked, "SCHEDULED", "AwaitingRetry", message, Limits.not_now_delay)
            else:
                message = str(error)
                was_set = self._set_state(asked, "FAILED", "Failed", message)
            if was_set and message != shown:  # a person was notified when it was put off for the same cause before
                self.notify(asked.name, str(error))
        return None

    def _set_state(self, asked: Asked, type_: str, name: str, message: str, delay: float = 0.0) -> bool:
        """True where the run was still open, and is set to this state: else a poll set its end before."""
        run = self.runs.open(asked.id)
        return run is not None and self.runs.set_state(SetState(run, type_, name, message, delay, "put off"))

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

    # ------------------------------------------------------------------------------------------------- polls

    def poll(self) -> None:
        """One poll: reconcile first, then show, then set how many may come."""
        try:
            self.pool.poll()
        finally:  # shows also what was done before the server went away
            self.show(self.pool.done)
            self._tell_ends(self.pool.done)
        if self.pool.alive is not None:
            with suppress(BadInput):  # somebody is editing the site file: the last good one stands
                self.read_site_again()
            self.places.keep(self.site, self.pool.alive)

    def tell(self) -> None:
        """Tells those that wait for a place why."""
        self.places.tell(sum(watched.run.type in UNDER_WAY for watched in self.pool.seen))

    def _tell_ends(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Finish) and action.end.follows != "AwaitingRetry" and not action.end.again:
                with suppress(ValueError):  # a folder given by hand belongs to no study
                    self._ended(run_of(Path(action.run.folder)))

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
                self._shown.show_end(watched, ended[watched.run.id])
                end = ended[watched.run.id].end
                if end is not None and end.follows == "Failed":
                    self.notify(ended[watched.run.id].name, end.message)
        if alive := [watched for watched in self.pool.seen if watched.run.id not in ended]:
            self._shown.show(alive)

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
