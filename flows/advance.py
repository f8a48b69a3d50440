"""Starts what is ready in the studies that were started here, and returns.

    python -m flows.advance --root ROOT --study STUDY

is how the worker of the pool `gpu` does it when a stage of a study has ended; the flow does it in every study, on a
schedule, as a backstop. A study goes on without its own flow run: what a person started is kept beside its runs
(`study_file`), and is read here. What failed or was cancelled is never started again.
"""

import argparse
import logging
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import httpx
from prefect import flow
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.states import State

from deployments.prefect.flow_run import prefect_state
from deployments.slurm.cluster.site import Site, has_site, read_site
from deployments.slurm.pool.runs import passes, patiently
from deployments.slurm.study import cancel, follow
from deployments.slurm.study import study as study_file
from deployments.slurm.study.flow_runs import Prefect
from deployments.slurm.study.study import root_of
from storage.errors import BadInput
from storage.visible import log_visibly
from tasks.stage.outcome import AWAITING_RETRY, BAD_INPUT, COMPLETED

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]


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
    log_visibly()
    site, logger = read_site(), get_run_logger()
    where = root_of(site, root)
    try:
        cancel.finish_cancels(where)
    except (BadInput, PrefectException, httpx.HTTPError, OSError) as error:
        logger.warning("cancelled studies: %s", error)
    left = _advance_each(study_file.active(where), site, where, logger)
    but = f", but not of {', '.join(left)}: why stands in the log, and the next run tries again" if left else ""
    return prefect_state(COMPLETED, f"what was ready is started{but}")


def _advance_each(files: Iterable[Path], site: Site, root: Path, log: Log) -> dict[str, Exception]:
    """Starts what is ready of each study; the errors of the others, by name."""
    left: dict[str, Exception] = {}
    for file in files:
        try:
            stages = patiently(partial(follow.advance_kept, Prefect(), file, site, root))
        except Exception as error:  # one study stops no other, whatever stands in its files
            known = isinstance(error, BadInput | PrefectException | httpx.HTTPError | OSError)
            log.warning("%s: %s", file.stem, error, exc_info=not known)
            left[file.parent.parent.name] = error
            continue
        stands = [f"{handle.label} {stages.standing(handle).stand}" for handle in stages.handles]
        log.info("%s: %s", file.stem, ", ".join(stands))
    return left


def main(arguments: list[str] | None = None) -> int:
    """Does the flow's work without a run of it; the exit code is that of something unfinished where time may help."""
    options = argparse.ArgumentParser(prog="python -m flows.advance", allow_abbrev=False)
    options.add_argument("--root", required=True)
    options.add_argument("--study", default="", help="all studies below the root where it is not given")
    parsed = options.parse_args(arguments)
    log_visibly()
    root, log = Path(parsed.root), logging.getLogger("ratchet.advance")
    try:
        left = _advance_each(study_file.active(root, parsed.study), read_site(), root, log)
    except BadInput as error:
        log.warning("%s", error)
        return BAD_INPUT.exit_code
    busy = any(
        passes(error) if isinstance(error, httpx.HTTPError) else isinstance(error, OSError) for error in left.values()
    )
    return AWAITING_RETRY.exit_code if busy else COMPLETED.exit_code


if __name__ == "__main__":
    sys.exit(main())
