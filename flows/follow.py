"""Follows studies to their ends, as a job on the cluster: what `ratchet run ... --dispatch slurm --detach` submits.

    python -m flows.follow

It brings its own Prefect server and worker, on the node's own disk, and keeps nothing there that it would miss: the job
that comes after it begins with what lies in the run directories. Exit codes: 0 nothing is left to follow, 75 the next
job goes on.
"""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
from prefect.exceptions import PrefectException

from deployments.dag.walk import Handle
from deployments.prefect.worker import WorkerEnded
from deployments.services import own_services
from deployments.slurm.cluster.client import SlurmError
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.study.follow import POLL_SECONDS, Follower, final_state
from deployments.slurm.study.follower import Entry, FollowerJob
from deployments.slurm.study.standings import Standing, Standings
from deployments.slurm.study.study import SlurmStudy
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import AWAITING_RETRY, COMPLETED, FAILED

LOG = logging.getLogger("ratchet.follow")


class Studies:
    """The studies of the follower's entries."""

    def __init__(self, site: Site, job: FollowerJob) -> None:
        self._site, self._job = site, job
        self._followers: dict[Path, Follower] = {}
        self._told: dict[str, Standing] = {}

    def look(self) -> bool:
        """Starts what is ready, and lets go of what has ended; True where anything is left to follow."""
        for entry in list(self._job.entries()):
            try:
                stages = self._look_at(entry)
            except (httpx.HTTPError, PrefectException, OSError) as error:  # the server or the disk: the next look
                LOG.warning("%s: %s", entry.file.stem, error)
                continue
            except BadInput as error:
                self._let_go(entry, f"is not followed any more: {error}")
                continue
            if entry.by_person:
                self._job.add(Entry(entry.file, entry.root, by_person=False))
            if not stages.under_way:
                state = final_state(stages)
                self._let_go(entry, f"{state.name}: {state.message}")
        return bool([*self._job.entries()])

    def _look_at(self, entry: Entry) -> Standings:
        if entry.by_person or entry.file not in self._followers:
            slurm = SlurmStudy.kept(entry.file, self._site, entry.root)
            self._followers[entry.file] = Follower(slurm, is_kept=True)
        follower = self._followers[entry.file]
        tell = partial(self._tell, entry.file.stem)
        return follower.start(tell) if entry.by_person else follower.advance(tell)

    def _tell(self, study: str, handle: Handle, standing: Standing) -> None:
        key = f"{study}/{handle.run.fingerprint}"
        if self._told.get(key) != standing:
            self._told[key] = standing
            LOG.info("%s: %s %s  %s", study, handle.label, handle.run.fingerprint[:12], standing.line)

    def _let_go(self, entry: Entry, why: str) -> None:
        LOG.info("%s: %s", entry.file.stem, why)
        self._job.remove(entry)
        self._followers.pop(entry.file, None)


def main() -> int:
    """The job; its log is the standard output."""
    log_visibly()
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("ratchet").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(AWAITING_RETRY.exit_code))
    site = read_site()
    job, note = FollowerJob(site), Path(os.environ["RATCHET_STOP_NOTE"])
    LOG.info("job %s follows the studies in %s", os.environ.get("SLURM_JOB_ID"), job.folder)
    try:
        with tempfile.TemporaryDirectory(prefix="ratchet-prefect-") as home, own_services(site, Path(home)) as check:
            return follow(Studies(site, job), job, check, note)
    except (WorkerEnded, BadInput) as error:
        LOG.error("%s. Start the study again when that is mended", error)
        return FAILED.exit_code


def follow(studies: Studies, job: FollowerJob, check: Callable[[], None], note: Path) -> int:
    """Looks until nothing is left to follow, or the note says that the time limit is near."""
    successor = ""
    while not note.exists():
        check()
        left = studies.look()
        try:
            if left and not successor:
                successor = job.ensure_queued()
                LOG.info("job %s comes after this one", successor)
            elif not left:
                if successor:
                    job.cancel(successor)
                successor = ""
                if not [*job.entries()]:  # one that is given now finds no job that waits, and submits it
                    return COMPLETED.exit_code
        except SlurmError as error:
            LOG.warning("no job is queued yet to come after this one: %s", error)
        time.sleep(POLL_SECONDS)
    LOG.info("the time limit is near: job %s goes on", successor or "of the next start")
    return AWAITING_RETRY.exit_code


if __name__ == "__main__":
    sys.exit(main())
