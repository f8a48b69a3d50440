"""Follows studies to their ends, as a job on the cluster: what `ratchet run ... --dispatch slurm --detach` submits.

    python -m flows.follow

It keeps nothing that it would miss: the job that comes after it begins with what lies in the run directories. Exit
codes: 0 nothing is left to follow, 75 the next
job goes on.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmError
from deployments.slurm.cluster.site import read_site
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.follower import FollowerJob
from deployments.slurm.study.standings import Standing
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import AWAITING_RETRY, COMPLETED, FAILED

LOG = logging.getLogger("ratchet.follow")


def main() -> int:
    """The job; its log is the standard output."""
    log_visibly()
    logging.basicConfig(stream=sys.stdout, format="%(asctime)s %(message)s", level=logging.WARNING, force=True)
    logging.getLogger("ratchet").setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(AWAITING_RETRY.exit_code))
    site = read_site()
    job, note = FollowerJob(site), Path(os.environ["RATCHET_STOP_NOTE"])
    LOG.info("job %s follows the studies in %s", os.environ.get("SLURM_JOB_ID"), job.folder)
    studies = Studies(site, job, tell)
    try:
        return follow(studies, job, note)
    except BadInput as error:
        LOG.error("%s. Start the study again when that is mended", error)
        return FAILED.exit_code
    finally:
        studies.end()


def tell(study: str, handle: Handle, standing: Standing) -> None:
    """Logs how a stage stands."""
    LOG.info("%s: %s %s  %s", study, handle.label, handle.run.fingerprint[:12], standing.line)


def follow(studies: Studies, job: FollowerJob, note: Path) -> int:
    """Looks until nothing is left to follow, or the note says that the time limit is near."""
    successor = ""
    while not note.exists():
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
        time.sleep(studies.seconds_to_next)
    LOG.info("the time limit is near: job %s goes on", successor or "of the next start")
    return AWAITING_RETRY.exit_code


if __name__ == "__main__":
    sys.exit(main())
