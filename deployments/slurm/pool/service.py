"""The jobs of a root as this process serves them, while it holds the root's lock: submits, polls, notifies.

Made when the lock is taken, and dropped when it is lost; keeps nothing that the next one could not find again.
"""

import logging
import os
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import Refused, SlurmCommands
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.site import Resources, Site, folder_of_jobs, read_site
from deployments.slurm.job.plan import Plan, asked_now, continues, time_problem
from deployments.slurm.job.preflight import require
from deployments.slurm.job.resources import description_of, kept_resources, plan_of
from deployments.slurm.pool.places import UNDER_WAY, Places
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Action, Finish, Limits, Run, SetState
from deployments.slurm.pool.records import Records
from storage import locks
from storage.errors import BadInput
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


class Service:
    """The jobs below one root, served by this process."""

    def __init__(self, site: Site, lock: locks.Lock, records: Records) -> None:
        self.site, self.lock, self.records = site, lock, records
        self.places = Places(records)
        self.pool = Pool(SlurmCommands(), records, ours=self.still_serves, arrays=folder_of_jobs(site) / "arrays")
        self._cluster: tuple[float, Cluster] | None = None

    def end(self) -> None:
        if self.still_serves():
            self.lock.release()

    def still_serves(self) -> bool:
        """True where no other process took over: asked before anything that could not be taken back."""
        try:
            self.lock.check()
        except locks.LockLost:
            return False
        return True

    # ------------------------------------------------------------------------------------------------- submission

    def submit(self, run: Run, handle: Handle, study_file: Path, source: Path) -> None:
        """Submits the next job of a run, which works in `source`; where there is none, its state says why, or a later
        poll finds it."""
        may_wait = True  # somebody may be editing the site file or the study
        try:
            automatic, state_id = self.records.asked_for_by(run.id)
            self.read_site_again()
            own = kept_resources(study_file, self.site.trust_group)
            may_wait = False
            plan = plan_of(
                handle, self.site, study_file, source, own, run=run.id, automatic=automatic, state_id=state_id
            )
            may_wait = continues(plan)  # for a disk that is away, say; a first job fails at once, and a person is told
            self._require_runnable(plan, plan.resources)
            may_wait = False  # for memory that no node has, or time in which no job gains a step
            self._require_memory(plan)
            if problem := time_problem(plan):
                raise BadInput(problem)
            self.pool.submit(plan)
        except OSError as error:  # it stays Pending, and a later poll makes it Scheduled again
            LOG.warning("%s: not submitted now: %s", description_of(handle), error)
        except (Refused, BadInput) as error:
            if may_wait and isinstance(error, BadInput):
                message = f"{NOT_YET}{error}"
                was_set = self._set_state(run, "SCHEDULED", "AwaitingRetry", message, Limits.not_now_delay)
            else:
                message = str(error)
                was_set = self._set_state(run, "FAILED", "Failed", message)
            if was_set and message != run.message:  # a person was notified when it was put off for the same cause
                self.notify(description_of(handle), str(error))

    def _set_state(self, asked: Run, type_: str, name: str, message: str, delay: float = 0.0) -> bool:
        """True where the run was still open, and is set to this state: else a poll set its end before."""
        run = self.records.open(asked.id)
        return run is not None and self.records.set_state(SetState(run, type_, name, message, delay, "put off"))

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
        """One poll: reconcile first, then tell a person, then see how many may come."""
        try:
            self.pool.poll()
        finally:  # also of what was done before a disk went away
            self._notify(self.pool.done)
        if self.pool.alive is not None:
            with suppress(BadInput):  # somebody is editing the site file: the last good one stands
                self.read_site_again()
            self.places.keep(self.site, self.pool.alive)

    def tell(self) -> None:
        """Tells those that wait for a place why."""
        self.places.tell(sum(watched.run.type in UNDER_WAY for watched in self.pool.seen))

    def _notify(self, actions: Iterable[Action]) -> None:
        """Notifies a person of what these actions ended or found."""
        names = {watched.run.id: watched.submissions[-1].name for watched in self.pool.seen if watched.submissions}
        for action in actions:
            if isinstance(action, SetState) and action.needs_person:
                self.notify(names[action.run.id], action.message)
            if isinstance(action, Finish) and action.end.follows == "Failed":
                self.notify(action.submission.name, action.end.message)

    def notify(self, name: str, message: str) -> None:
        """Notifies a person, by the site's command, of a stage that does not go on by itself."""
        if self.site.notify:
            notify(self.site.notify, f"Ratchet: {name} needs you", message)


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
