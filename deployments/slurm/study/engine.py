"""Studies on SLURM where no Prefect server stands: followed by whoever waits, or by a job on the cluster.

What is to be followed stands on disk (`FollowerJob.entries`). One process at a time serves a root, by the lock of its
pool of jobs: it follows all of these studies. Another one that waits for a study only looks how it stands, and serves
when the first one has ended.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle
from deployments.prefect.generate import JOBS
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site, folder_of_pool, server_of_worker
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from deployments.slurm.job.variables import job_values, job_variables, run_name, stage_parameters
from deployments.slurm.pool.reconcile import Seen, SetState
from deployments.slurm.pool.service import Asked, Service, interval_seconds
from deployments.slurm.study.follow import Follower, Host, final_state, standings
from deployments.slurm.study.follower import Entry, FollowerJob
from deployments.slurm.study.preflight import require_runnable
from deployments.slurm.study.records import Records, RecordStarter
from deployments.slurm.study.standings import Look, Standing
from deployments.slurm.study.stop import wanted_by_others
from deployments.slurm.study.study import SlurmStudy
from storage import locks
from storage.errors import BadInput, Held
from tasks.stage.outcome import BAD_INPUT, PrefectState

LOG = logging.getLogger("ratchet.follow")
Tell = Callable[[str, Handle, Standing], None]
"""Gets the file's stem of a study, a stage of it, and how that stands."""


class _Nowhere:
    """Run directories and the journal hold all."""

    def show(self, seen: Sequence[Seen]) -> None:
        pass

    def show_end(self, seen: Seen, ended: Submission) -> None:
        pass


class Engine(Host):
    """The runs of stages by the engine's own records; their jobs are submitted by this process, where it serves."""

    def __init__(self, site: Site, lock: locks.Lock | None = None) -> None:
        """Without a lock it only looks."""
        self._site, self._records = site, Records()
        self._work: dict[Path, tuple[Handle, SlurmStudy, Path]] = {}
        """The stages that may be started, with the source of their jobs, by the folders of these."""
        self.service = Service(JOBS, site, lock, self._records, _Nowhere()) if lock else None

    def know(self, slurm: SlurmStudy) -> None:  # from now on the jobs of its stages are seen to
        self._records.read(slurm.walk.handles, [])

    @contextmanager
    def looking(self, slurm: SlurmStudy, starts: bool, **how: Any) -> Iterator[Look]:
        serves = starts and self.service is not None
        source = slurm.kept_source() if serves else Path()  # before a look: it may not be as it was staged
        yield Look(self._records, SlurmCommands(), starter=RecordStarter(self._records) if serves else None, **how)
        if serves:  # after it: a sweep's table without the cells that stopped is a stage by now
            self._work |= {jobs_folder(handle.run): (handle, slurm, source) for handle in slurm.walk.handles}

    def require_runnable(self, slurm: SlurmStudy) -> None:
        require_runnable(slurm)

    def withdraw(self, slurm: SlurmStudy, why: str) -> None:
        self._cancel(slurm, why, with_jobs=False)

    def cancel(self, slurm: SlurmStudy) -> None:
        self._cancel(slurm, "its study was cancelled", with_jobs=True)

    def _cancel(self, slurm: SlurmStudy, why: str, with_jobs: bool) -> None:
        spared = wanted_by_others(slurm)
        for handle in slurm.handles:
            run = self._records.made_for(handle)
            if run is None or run.over or handle.finished or handle.run.fingerprint in spared:
                continue
            has_job = any(entry.live for entry in Journal(jobs_folder(handle.run)).all())
            if (with_jobs or not has_job) and (asked := self._records.open(run.id)) and asked.type != "CANCELLING":
                type_, name = ("CANCELLING", "Cancelling") if has_job else ("CANCELLED", "Cancelled")
                self._records.set_state(SetState(asked, type_, name, why))

    def submit_due(self) -> None:
        """Submits what waits for a job, as far as there are places."""
        if not (service := self.service):
            return
        under_way = sum(run.type in ("PENDING", "RUNNING") for run in self._records.watched(()))
        allowed = self._records.allowed()
        for run in self._records.waiting() if service.places.are_kept else ():
            if allowed is not None and under_way >= allowed:
                break
            if not (work := self._work.get(Path(run.folder))):
                continue  # its study could not be looked at
            handle, slurm, source = work
            if self._records.set_state(SetState(run, "PENDING", "Pending", "")):
                under_way += 1
                variables, parameters = job_variables(self._site, handle, source), stage_parameters(handle, slurm.file)
                asked = Asked(run.id, run_name(handle), parameters, variables, Path(run.folder))
                service.submit(asked, job_values(self._site, handle, source))
        service.tell()


class Studies:
    """The studies that are to be followed at a site, by this process while it serves the site's root."""

    def __init__(self, site: Site, job: FollowerJob, tell: Tell) -> None:
        self._site, self._job, self._tell = site, job, tell
        self._engine = Engine(site)
        self._followers: dict[Path, Follower] = {}
        self._ends: dict[Path, tuple[PrefectState, str]] = {}
        """How the studies ended that were let go."""
        self._known: dict[str, Standing] = {}

    def look(self) -> bool:
        """Starts what is ready, and lets go of what has ended; True where anything is left to follow."""
        if service := self._serving():
            followed = [*filter(self._follows, self._job.entries())]
            service.poll()  # first: how jobs ended that a person's start may begin again
            for entry in followed:
                self._look_at(entry)
            self._engine.submit_due()
        return bool([*self._job.entries()])

    def end_of(self, slurm: SlurmStudy) -> tuple[PrefectState, str] | None:
        """How a study ended; None while it is followed. Tells how it stands where another process serves."""
        if self._engine.service is None:
            slurm.walk.check_markers()
            stages = standings(self._engine, slurm, partial(self._told, slurm.file.stem))
            if slurm.file not in {entry.file for entry in self._job.entries()}:
                return final_state(stages)
        return self._ends.get(slurm.file)

    @property
    def seconds_to_next(self) -> float:
        """Until the next look: with many jobs SLURM is asked less often."""
        service = self._engine.service
        return interval_seconds(len(service.pool.live) if service else 0)

    def end(self) -> None:
        if self._engine.service:
            self._engine.service.end()

    def _serving(self) -> Service | None:
        """The service of the root's jobs, begun where nobody else serves them."""
        if (service := self._engine.service) and service.still_serves():
            return service
        folder = folder_of_pool(self._site, JOBS)
        try:
            lock = locks.acquire(folder / "locks")
        except Held as held:
            if server := server_of_worker(folder):
                raise BadInput(
                    f"a worker of the Prefect server at {server} serves the jobs below {self._site.root} ({held}): "
                    "set PREFECT_API_URL to that, or end the worker"
                ) from None
            self._engine = Engine(self._site)
            return None
        self._engine, self._followers = Engine(self._site, lock), {}
        assert self._engine.service
        self._engine.service.begin()
        return self._engine.service

    def _follows(self, entry: Entry) -> bool:
        """True where the study of the entry can be followed."""
        try:
            if entry.by_person or entry.file not in self._followers:
                slurm = SlurmStudy.kept(entry.file, self._site, entry.root)
                self._followers[entry.file] = Follower(self._engine, slurm, is_kept=True)
                self._engine.know(slurm)
            return True
        except OSError as error:  # the disk: the next look
            LOG.warning("%s: %s", entry.file.stem, error)
        except BadInput as error:
            self._let_go(entry, (BAD_INPUT, f"is not followed any more: {error}"))
        return False

    def _look_at(self, entry: Entry) -> None:
        follower, told = self._followers[entry.file], partial(self._told, entry.file.stem)
        try:
            stages = follower.start(told) if entry.by_person else follower.advance(told)
        except OSError as error:
            LOG.warning("%s: %s", entry.file.stem, error)
            return
        except BadInput as error:
            self._let_go(entry, (BAD_INPUT, f"is not followed any more: {error}"))
            return
        if entry.by_person:
            self._job.add(Entry(entry.file, entry.root, by_person=False))
        if not stages.under_way:
            self._let_go(entry, final_state(stages))

    def _told(self, study: str, handle: Handle, standing: Standing) -> None:
        key = f"{study}/{handle.run.fingerprint}"
        if self._known.get(key) != standing:
            self._known[key] = standing
            self._tell(study, handle, standing)

    def _let_go(self, entry: Entry, end: tuple[PrefectState, str]) -> None:
        LOG.info("%s: %s: %s", entry.file.stem, end[0].name, end[1])
        self._ends[entry.file] = end
        self._job.remove(entry)
        self._followers.pop(entry.file, None)
