"""One stage: what a SLURM job runs.

    python -m flows.stage --study-file FILE --stage train-baseline --root ROOT --fingerprint 3fa9...

It works on the run directory, and its exit code says how it ended.
"""

import argparse
import logging
import os
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from deployments.dag.walk import Handle, Walk
from deployments.slurm.job.script import BAD_INPUT, DISK_FULL, ENDED_BEFORE, HELD
from deployments.slurm.study import snapshot
from deployments.slurm.study import study as study_file
from storage import durable
from storage.attempts import SOURCE_FILE
from storage.errors import BadInput
from storage.markers import Verdict
from storage.run_directory import RunDirectory, read
from storage.visible import log_visibly
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome

LOG = logging.getLogger("ratchet.job")
HELD_MINUTES = 5.0
"""How long a job waits for another process that holds its run directory: a frozen one is dead after a minute."""
INPUTS_SECONDS = 90.0
"""How long a job waits for inputs that were finished when it was submitted: for up to a minute an NFS client knows
nothing of what another host wrote into a folder that it has just listed."""
INPUTS_POLL_SECONDS = 5.0


def work(file: str, name: str, root: str, fingerprint: str | None) -> Outcome:
    """Does one attempt at the stage; waits for a run directory that is held. Raises BadInput when it cannot begin."""
    if (snapshot.REPOSITORY / SOURCE_FILE).is_file():  # a copy, as a job runs it
        snapshot.require_as_staged(snapshot.REPOSITORY)
    page, study = study_file.read(Path(file), None)
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    walk.close_to_others()
    if fingerprint not in {handle.run.fingerprint for handle in walk.handles}:
        page.sweep_without_stopped(study, walk)  # it may be the table of a sweep without some cells
    handle = _find(walk.handles, name, RunDirectory(Path(root), study.name, name, fingerprint) if fingerprint else None)
    until = time.monotonic() + INPUTS_SECONDS
    is_here = handle in walk.handles  # else the attempt refuses it
    while is_here and handle.waits_for and time.monotonic() < until:
        LOG.info("does not see yet that %s is finished; checks again", ", ".join(handle.waits_for))
        time.sleep(INPUTS_POLL_SECONDS)
        walk.check_markers()
    if handle.finished:
        return Outcome("finished")
    if is_here and handle.waits_for:
        raise BadInput(
            f"{name} reads what is not finished: {', '.join(handle.waits_for)}. Start the study, which runs them first"
        )
    inputs = {role: parent.as_input() for role, parent in handle.inputs.items()}
    until = time.monotonic() + 60 * HELD_MINUTES
    this = (handle.stage, handle.config, handle.run, inputs, handle.own_source, handle.origin)
    while (outcome := attempt(*this)).end_state == "held":
        if time.monotonic() > until:
            break
        LOG.info("waits: %s", outcome.message)
        time.sleep(10)
    return outcome


def _find(handles: list[Handle], name: str, run: RunDirectory | None) -> Handle:
    """The stage of this name and run. One that gives another run by now, of which there is this, is to be refused by
    the attempt, which leaves a record of it and says what changed."""
    named = [handle for handle in handles if handle.stage.name == name]
    matching = [handle for handle in named if run is None or handle.run.fingerprint == run.fingerprint]
    if len(matching) == 1:
        return matching[0]
    if not named:
        raise BadInput(f"there is no stage {name!r} on this page: {', '.join(handle.stage.name for handle in handles)}")
    if run is not None and run.path.is_dir():
        fields = read(run.stage_file).get("scientific")
        same = (handle for handle in named if handle.config.scientific() == fields)
        return replace(next(same, named[0]), run=run, verdict=Verdict(False, present=False))
    known = ", ".join(handle.run.fingerprint for handle in named)
    if not matching:
        raise BadInput(
            f"{name} has the fingerprint {known} and not {run and run.fingerprint}: code, a package or a file that it "
            "reads changed since it was dispatched; restore that, or start the study again, which is another run"
        )
    raise BadInput(f"there are several stages {name!r}: name one by its fingerprint ({known})")


def main(arguments: list[str] | None = None) -> int:
    """The job: logs to standard error, which is the job's log; returns the attempt's exit code."""
    options = argparse.ArgumentParser(prog="python -m flows.stage", allow_abbrev=False)
    for name in ("study-file", "stage", "root"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--fingerprint")
    parsed = options.parse_args(arguments)
    _log_to_standard_error()
    try:
        outcome = work(parsed.study_file, parsed.stage, parsed.root, parsed.fingerprint)
    except BadInput as error:
        LOG.error("bad input: %s", error)
        return BAD_INPUT
    except Exception as error:
        LOG.exception("ended before the stage began")
        return DISK_FULL if durable.disk_full(error, Path(parsed.root)) else ENDED_BEFORE
    LOG.info("%s", f"{outcome.end_state}: {outcome.text}" if outcome.message else outcome.end_state)
    if outcome.diagnosis and outcome.diagnosis.category == "disk full":
        return DISK_FULL  # the attempt's record may have found no room either
    return HELD if outcome.end_state == "held" else outcome.exit_code


class _WithOffset(logging.Formatter):
    """Compute nodes may have another time zone than the host of the worker."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return datetime.fromtimestamp(record.created).astimezone().isoformat(" ", "milliseconds")


def _log_to_standard_error() -> None:
    """In the form that `deployments.slurm.study.mirror` reads."""
    log_visibly()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_WithOffset("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("ratchet")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


def _exit(code: int) -> NoReturn:
    """Ends the process with this code, also where its log is on a full disk: Python itself would end with 120."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    _exit(main())
