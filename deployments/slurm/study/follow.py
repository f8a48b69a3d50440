"""Studies on SLURM, followed to their ends: by the command that waits, a flow run of Prefect, or a job on the cluster.

What is to be followed stands on disk (`Looks.entries`). One process at a time serves a root, by its lock: it follows
all of these studies. Another one that waits for a study only looks how it stands, and serves when the first has ended.
"""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deployments.dag.walk import Handle
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site, folder_of_jobs
from deployments.slurm.pool.service import Service, interval_seconds
from deployments.slurm.study import study as study_file
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.looks import Entry, Looks
from deployments.slurm.study.preflight import require_runnable
from deployments.slurm.study.standings import Standing, Standings, Told
from deployments.slurm.study.study import SlurmStudy
from deployments.views.index import completed
from storage import locks
from storage.errors import BadInput, Held
from storage.permissions import close_to_others
from tasks.stage.outcome import AWAITING_RETRY, BAD_INPUT, CANCELLED, COMPLETED, PrefectState, state_of_study

LOG = logging.getLogger("ratchet.follow")
LEFT_SECONDS = 30.0
"""For another process to take over."""
Tell = Callable[[str, Handle, Standing], None]
"""Gets the file's stem of a study, a stage of it, and how that stands."""
End = tuple[PrefectState, str]
"""The state of a study that has ended, or goes no further by itself, and why."""


class Studies:
    """The studies that are to be followed at a site, by this process while it serves the site's root."""

    def __init__(self, site: Site, looks: Looks, tell: Tell) -> None:
        self._site, self._list, self._tell = site, looks, tell
        self._engine = Engine(site)
        self._studies: dict[Path, SlurmStudy] = {}
        self._ends: dict[Path, End] = {}
        """How the studies ended that were let go."""
        self._known: dict[str, Standing] = {}
        self._served_by = ""
        self._left_to_others: set[Path] = set()
        """Studies that this process could not read, and another one may: files of the code that changed since."""
        self._serves_again_at = 0.0

    def look(self) -> bool:
        """Starts what is ready, and lets go of what has ended; True where anything is left to follow."""
        try:
            if service := self._serving():
                followed = [*filter(self._follows, self._list.entries())]
                if self.serves:
                    service.poll()  # first: how jobs ended that a person's start may begin again
                    for entry in followed:
                        self._look_at(entry)
                    self._engine.submit_due()
        except OSError as error:  # a full disk, say: the next look
            LOG.warning("this look was broken off: %s", error)
        return bool([*self._list.entries()])

    def end_of(self, slurm: SlurmStudy) -> End | None:
        """How a study ended; None while it is followed. Tells how it stands where another process serves."""
        if slurm.file in self._ends:
            return self._ends[slurm.file]
        is_followed = slurm.file in {entry.file for entry in self._list.entries()}
        if is_followed and self.serves:
            return None
        slurm.walk.check_markers()
        stages = self._engine.standings(slurm, partial(self._tell_change, slurm.file.stem))
        return None if is_followed else final_state(stages)

    @property
    def serves(self) -> bool:
        """True where this process follows the studies."""
        return self._engine.service is not None

    @property
    def alive(self) -> list[str]:
        """Ids of the jobs that this process follows."""
        service = self._engine.service
        return [entry.job_id for entry in service.pool.live.values() if entry.job_id] if service else []

    @property
    def gathers(self) -> bool:
        """True where jobs of an array wait for the next look."""
        return self._engine.service is not None and bool(self._engine.service.pool.submissions.gathered)

    @property
    def due_in_seconds(self) -> float:
        """Until a job that was put off is due; infinite where none is."""
        return self._engine.due_in_seconds

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
        self._engine, self._studies = Engine(self._site), {}
        if time.monotonic() < self._serves_again_at:
            return None
        folder = folder_of_jobs(self._site)
        require_own([folder], self._site.trust_group)
        close_to_others(self._site.permissions)  # scripts and logs of jobs, which begin with the umask of this process
        try:
            self._engine = Engine(self._site, locks.acquire(folder / "locks"))
        except Held as held:
            if str(held) != self._served_by:
                LOG.info("another process serves the jobs below %s: %s", self._site.root, held)
            self._served_by = str(held)
        return self._engine.service

    def _follows(self, entry: Entry) -> bool:
        """True where the study of the entry can be followed."""
        try:
            if entry.by_person or entry.file not in self._studies:
                slurm = self._studies[entry.file] = SlurmStudy.kept(entry.file, self._site, entry.root)
                self._engine.know(slurm)
            return True
        except OSError as error:  # the disk: the next look
            LOG.warning("%s: %s", entry.file.stem, error)
        except BadInput as error:
            if entry.by_person and entry.file not in self._left_to_others:
                self._leave_to_others(entry)  # its code may be newer than this process
            else:
                self._let_go(entry, (BAD_INPUT, f"is not followed any more: {error}"))
        return False

    def _leave_to_others(self, entry: Entry) -> None:
        """Lets whoever waits for a study serve the root, if anybody does."""
        self._left_to_others.add(entry.file)
        self._serves_again_at = time.monotonic() + LEFT_SECONDS
        self.end()
        self._engine = Engine(self._site)

    def _look_at(self, entry: Entry) -> None:
        slurm, tell = self._studies[entry.file], partial(self._tell_change, entry.file.stem)
        try:
            stages = self._engine.advance(slurm, tell, person=entry.by_person)
            if entry.by_person:
                self._list.add(Entry(entry.file, entry.root, by_person=False))
            if not stages.under_way:
                end = final_state(stages)
                is_cancelled = end[0] == AWAITING_RETRY and study_file.stopped(slurm.file).exists()
                self._let_go(entry, (CANCELLED, "the study was cancelled") if is_cancelled else end)
        except OSError as error:  # the disk of one study stops no other
            LOG.warning("%s: %s", entry.file.stem, error)
        except BadInput as error:
            self._let_go(entry, (BAD_INPUT, f"is not followed any more: {error}"))

    def _tell_change(self, study: str, handle: Handle, standing: Standing) -> None:
        key = f"{study}/{handle.run.fingerprint}"
        if self._known.get(key) != standing:
            self._known[key] = standing
            self._tell(study, handle, standing)

    def _let_go(self, entry: Entry, end: End) -> None:
        level = logging.WARNING if end[0] == BAD_INPUT else logging.INFO
        LOG.log(level, "%s: %s: %s", entry.file.stem, end[0].name, end[1])
        self._ends[entry.file] = end
        self._list.remove(entry)
        self._studies.pop(entry.file, None)


def followed(slurm: SlurmStudy, changed: Told, goes_on: bool = False, is_entrusted: bool = False) -> End:
    """Starts a study as a person does, and stays until it ends; BadInput says before any job what stands against it.

    `changed` gets each change of a stage. With `goes_on` whoever serves the root next follows the study where this
    process ends first; `is_entrusted`: it was started a moment ago, and is followed by others too.
    """

    def tell(study: str, handle: Handle, standing: Standing) -> None:
        if study == slurm.file.stem:
            changed(handle, standing)

    looks = Looks(slurm.site)
    others_follow = is_entrusted or slurm.file in {known.file for known in looks.entries()}
    if not is_entrusted:
        entrust(slurm, looks)
    studies = Studies(slurm.site, looks, tell)
    try:
        while True:
            studies.look()
            if end := studies.end_of(slurm):
                return end
            time.sleep(studies.seconds_to_next)
    finally:
        if not (others_follow or goes_on):
            looks.remove(Entry(slurm.file, slurm.root, by_person=True))
        studies.end()


def entrust(slurm: SlurmStudy, looks: Looks) -> None:
    """Keeps a study, and gives it to whoever serves the root; BadInput says before what stands against its jobs."""
    require_runnable(slurm)
    slurm.keep()
    looks.add(Entry(slurm.file, slurm.root, by_person=True))


def final_state(stages: Standings) -> End:
    """The study's state, and what stopped it."""
    each = [(handle, stages.standing(handle)) for handle in stages.handles]
    state = state_of_study(standing.state for _, standing in each)
    if state == COMPLETED:
        return state, completed(stages.handles)
    stopped = [pair for pair in each if pair[1].stand in ("failed", "cancelled")]
    return state, "; ".join(f"{handle.label}: {standing.message}" for handle, standing in stopped) or "unfinished"
