"""Looks once after the studies of a site, as a job on the cluster: what a start with `--detach` submits.

    python -m flows.look

It submits what is ready, queues the next looks, and ends; it keeps nothing that the next one would miss.
"""

import logging
import os
import sys
import time
from collections.abc import Callable

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmError
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.standings import Standing
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import COMPLETED, FAILED

LOG = logging.getLogger("ratchet.follow")
AGAIN_SECONDS = 20.0
"""Before it looks again itself, where SLURM takes no look after it or the site file cannot be read."""


def main() -> int:
    """The job; its log is the standard output."""
    log_visibly()
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("ratchet").setLevel(logging.INFO)
    site, this = _site(), os.environ.get("SLURM_JOB_ID", "")
    looks = Looks(site)
    LOG.info("job %s looks after the studies in %s", this, looks.folder)
    studies = Studies(site, looks, tell)
    try:
        while not look(studies, looks, this):
            time.sleep(AGAIN_SECONDS)  # until the time limit: jobs end meanwhile, and leave a place
        return COMPLETED.exit_code
    except BadInput as error:
        LOG.error("%s. Start the study again when that is mended", error)
        return FAILED.exit_code
    finally:
        studies.end()


def _site() -> Site:
    """The site, waited for while somebody edits its file: no look is queued yet in place of this one."""
    while True:
        try:
            return read_site()
        except BadInput as error:
            LOG.error("%s", error)
            time.sleep(AGAIN_SECONDS)


def look(studies: Studies, looks: Looks, this: str) -> bool:
    """Looks once; True where the next looks are queued, or nothing is left to follow."""
    is_guarded = _queued(lambda: looks.ensure_guard(this))  # first: from now on this one may be killed at any moment
    left = studies.look()
    if studies.gathers:  # the first jobs of an array wait for the others of it until the next look
        studies.look()
    if not left:
        return _queued(lambda: looks.end(this))
    if studies.serves:
        return _queued(lambda: looks.queue_next(this, studies.alive, studies.due_in_seconds)) or is_guarded
    return is_guarded  # for when who serves now has ended


def _queued(act: Callable[[], None]) -> bool:
    try:
        act()
        return True
    except SlurmError as error:
        LOG.warning("SLURM did not take what is to come after this look: %s", error)
        return False


def tell(study: str, handle: Handle, standing: Standing) -> None:
    """Logs how a stage stands."""
    LOG.info("%s: %s %s  %s", study, handle.label, handle.run.fingerprint[:12], standing.line)


if __name__ == "__main__":
    sys.exit(main())
