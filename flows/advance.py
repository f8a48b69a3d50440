"""Follows the studies on SLURM whose processes are gone, and ends those that were cancelled meanwhile.

A study goes on without its own flow run: what a person started is kept beside its runs, and what is to be followed in
a list of the site. A flow run of a study follows it; this flow does, on a schedule, where that was killed.
"""

import time

from prefect import flow
from prefect.logging import get_run_logger
from prefect.states import State

from deployments.prefect.flow_run import prefect_state
from deployments.slurm.cluster.client import require_commands
from deployments.slurm.cluster.site import has_site, read_site
from deployments.slurm.study.cancel import finish_cancels
from deployments.slurm.study.follow import Studies
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import root_of
from flows.look import tell
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import BAD_INPUT, COMPLETED


@flow(name="advance", flow_run_name="advance", persist_result=False)
def advance(root: str = "") -> State:
    """Follows started studies that nobody else follows, until they end.

    Args:
        root: Folder that holds the run directories; empty: the site's.
    """
    if not has_site():
        return prefect_state(COMPLETED, "there is no cluster here (no site file), so nothing to follow")
    log_visibly()
    try:
        site = read_site()
        require_commands()
        try:
            finish_cancels(root_of(site, root))
        except Exception as error:  # of one study: the others go on
            get_run_logger().warning("cancelled studies: %s", error, exc_info=not isinstance(error, BadInput))
        studies = Studies(site, Looks(site), tell)
        try:
            while studies.look() and studies.serves:
                time.sleep(studies.seconds_to_next)
            return prefect_state(COMPLETED, "nothing is left to follow" if studies.serves else "another one follows")
        finally:
            studies.end()
    except BadInput as error:  # a sentence, and no traceback
        return prefect_state(BAD_INPUT, str(error))
