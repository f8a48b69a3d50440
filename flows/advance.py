"""Starts what is ready in every study that was started here, and returns: a backstop on a schedule.

A study goes on without its own flow run: what a person started is kept beside its runs (`study_file`), and this flow
reads each. It never starts again what failed or was cancelled.
"""

from __future__ import annotations

from functools import partial

import httpx
from prefect import flow
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.states import State

from deployments.slurm.cluster.site import has_site, read_site
from deployments.slurm.pool.runs import patiently
from deployments.slurm.study import cancel, follow
from deployments.slurm.study import file as study_file
from deployments.slurm.study.study import root_of
from deployments.states import prefect_state
from storage.errors import BadInput
from tasks.stage.outcome import BAD_INPUT, COMPLETED


@flow(name="advance", flow_run_name="advance", persist_result=False)
def advance(root: str = "") -> State:
    """Starts what is ready in every started study, once.

    Args:
        root: Folder that holds the run directories; empty: the site's.
    """
    if not has_site():
        return prefect_state(COMPLETED, "there is no cluster here (no site file), so nothing to start")
    try:
        return _advance(root)
    except BadInput as error:  # a sentence, and no traceback
        return prefect_state(BAD_INPUT, str(error))


def _advance(root: str) -> State:
    site, logger = read_site(), get_run_logger()
    where, left = root_of(site, root), []
    try:
        cancel.finish_cancels(where)
    except (BadInput, PrefectException, httpx.HTTPError, OSError) as error:
        logger.warning("cancelled studies: %s", error)
    for file in study_file.active(where):
        try:
            found = patiently(partial(follow.advance_kept, file, site, where))
        except (BadInput, PrefectException, httpx.HTTPError, OSError) as error:  # one study stops no other
            logger.warning("%s: %s", file.stem, error)
            left.append(file.parent.parent.name)
            continue
        stands = [f"{handle.label} {found.standing(handle).stand}" for handle in found.handles]
        logger.info("%s: %s", file.stem, ", ".join(stands))
    but = f", but not of {', '.join(left)}: why stands in the log, and the next run tries again" if left else ""
    return prefect_state(COMPLETED, f"what was ready is started{but}")
