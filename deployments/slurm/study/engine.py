"""How the stages of studies on SLURM stand, from what lies in their run directories, and their start by the one process
that serves the root."""

import logging
from pathlib import Path

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.pool.places import UNDER_WAY
from deployments.slurm.pool.reconcile import SetState
from deployments.slurm.pool.records import Records
from deployments.slurm.pool.service import Service
from deployments.slurm.study import study as study_file
from deployments.slurm.study.standings import Look, Standings, Told, nobody
from deployments.slurm.study.stop import wanted_by_others
from deployments.slurm.study.study import SlurmStudy
from deployments.views.index import leave_for_people
from storage import durable, locks
from storage.errors import BadInput
from storage.inside import Outside, copy

LOG = logging.getLogger("ratchet.slurm")


class Engine:
    """Starts what is ready of studies below a root; jobs run the source as it was when a person last started a study,
    whoever serves the root."""

    def __init__(self, site: Site, lock: locks.Lock | None = None) -> None:
        """Without the root's lock it only looks."""
        self._records = Records()
        self._work: dict[Path, tuple[Handle, SlurmStudy, Path]] = {}
        """The stages that may be started, with the source of their jobs, by the folders of these."""
        self.service = Service(site, lock, self._records) if lock else None

    def know(self, slurm: SlurmStudy) -> None:
        """Sees to the jobs of the study's stages from now on."""
        for handle in slurm.walk.handles:
            self._records.present(handle.run)

    def standings(self, slurm: SlurmStudy, tell: Told = nobody) -> Standings:
        """How every stage stands; starts and writes nothing."""
        return _all(slurm, Look(self._records, SlurmCommands(), told=tell))

    def advance(self, slurm: SlurmStudy, tell: Told = nobody, person: bool = False) -> Standings:
        """Starts what is ready; what failed or was cancelled begins again where a `person` asks, else it stays so.

        Nothing is started of a study that was cancelled since a person started it. BadInput when its file is gone.
        """
        if not slurm.file.exists():
            raise BadInput(study_file.GONE.format(slurm.file))
        slurm.walk.check_markers()  # of what a compute node wrote a moment ago, too
        if not study_file.stopped(slurm.file).exists():
            return self._advanced(slurm, tell, person)
        if not slurm.handles[-1].finished:
            self._cancel(slurm, "its study was cancelled", with_jobs=True)
        return self.standings(slurm, tell)

    def submit_due(self) -> None:
        """Submits what waits for a job, as far as there are places."""
        if not (service := self.service):
            return
        under_way = sum(run.type in UNDER_WAY for run in self._records.watched())
        for run in self._records.waiting():
            if service.places.allowed is not None and under_way >= service.places.allowed:
                break
            if not (work := self._work.get(Path(run.folder))):
                continue  # its study could not be looked at
            handle, slurm, source = work
            if self._records.set_state(SetState(run, "PENDING", "Pending", run.message)):
                under_way += 1
                service.submit(run, handle, slurm.file, source)
        service.tell()

    @property
    def due_in_seconds(self) -> float:
        """Until a job that was put off is due; infinite where none is."""
        return self._records.due_in_seconds()

    def _advanced(self, slurm: SlurmStudy, tell: Told, person: bool) -> Standings:
        source = slurm.kept_source()  # first: it may not be as it was staged
        stages = _all(slurm, Look(self._records, SlurmCommands(), starts=True, person=person, told=tell))
        # after it: a sweep's table without the cells that stopped is a stage by now
        self._work |= {jobs_folder(handle.run): (handle, slurm, source) for handle in slurm.walk.handles}
        if refused := [handle.label for handle in stages.handles if handle.refusal]:
            self._cancel(slurm, f"{refused[0]} cannot use what is finished: why stands there", with_jobs=False)
        last = stages.handles[-1]
        _keep_results(slurm.handles[-1], slurm.site)
        if last.finished:
            leave_for_people(last)
        if all(handle.finished for handle in slurm.handles):
            study_file.stopped(slurm.file).touch()
        return stages

    def _cancel(self, slurm: SlurmStudy, why: str, with_jobs: bool) -> None:
        """Cancels the runs of the study, but for those of stages that another one wants; without those `with_jobs`,
        what was started goes on, and no more of it is."""
        spared = wanted_by_others(slurm)
        for handle in slurm.handles:
            run = self._records.made_for(handle)
            if run is None or run.over or handle.finished or handle.run.fingerprint in spared:
                continue
            has_job = any(entry.live for entry in Journal(jobs_folder(handle.run)).all())
            if (with_jobs or not has_job) and (asked := self._records.open(run.id)) and asked.type != "CANCELLING":
                type_, name = ("CANCELLING", "Cancelling") if has_job else ("CANCELLED", "Cancelled")
                self._records.set_state(SetState(asked, type_, name, why))


def _all(slurm: SlurmStudy, look: Look) -> Standings:
    """Every stage, and the table of a sweep without the cells that stopped, when nothing else is left to do."""
    stages = look.at(slurm.handles)
    if not stages.under_way and (table := slurm.page.sweep_without_stopped(slurm.study, slurm.walk)):
        look.at([table])
    return stages


def _keep_results(last: Handle, site: Site) -> None:
    """Copies what the study's last stage made, and its marker, to the site's folder for results; once.

    When that folder cannot be written, a warning says so: the results are where they were made.
    """
    if not site.results or not last.finished:
        return
    target = Path(site.results) / f"{last.run.study}-{last.run.fingerprint[:12]}"
    if target.exists():
        return
    marker = last.run.marker_file
    try:
        with durable.new_directory(target) as new:
            for name, described in durable.read_json(marker)["outputs"].items():
                copy(last.run.path, name, new, described["sha256"])
            copy(last.run.path, marker.name, new)
    except (OSError, Outside) as error:
        LOG.warning("the results could not be copied to %s (results in the site file): %s", target, error)
    else:
        LOG.info("results copied to %s", target)
