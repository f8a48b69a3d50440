"""Commands for a cluster alone: a study's jobs there, how they stand, what they used, and their end.

It takes Prefect's client.
"""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect.exceptions import PrefectException
from prefect.logging.configuration import setup_logging
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
from sqlalchemy import make_url

from deployments.dag.walk import Handle
from deployments.prefect.embedded import configured, require_answer
from deployments.prefect.worker import WorkerEnded
from deployments.services import own_server, own_services
from deployments.slurm.cluster.client import SlurmCommands, SlurmError, Unreachable
from deployments.slurm.study import efficiency
from deployments.slurm.study.cancel import address_of, cancel_jobs, cancel_runs, mark_stopped
from deployments.slurm.study.doctor import look
from deployments.slurm.study.follow import Follower, follow, standings
from deployments.slurm.study.follower import Entry, FollowerJob
from deployments.slurm.study.preflight import checked, require_runnable
from deployments.slurm.study.study import SlurmStudy
from deployments.waits import Terminated, terminated_by_sigterm
from flows.command.display import Display
from flows.command.terminal import OUT, refuse, show, show_markdown
from storage.errors import BadInput
from tasks.stage import outcome

JOBS_GO_ON = (
    "Jobs that run or are queued go on; what comes after them is submitted when the same command is started again, "
    "which finds them, or another study of this root is followed. To end them: ratchet cancel, with the same options"
)


def run_on_slurm(slurm: SlurmStudy, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code.

    Who waits needs no server that stays: server and worker are brought for as long.
    """
    if not wait or configured():
        require_server()
        state = follow(Follower(slurm, _show_address), _show_change, once=not wait)
        goes_on = "the jobs go on by themselves while the worker of their pool runs"
    else:
        try:
            state = _followed_here(slurm)
        except WorkerEnded as error:
            return refuse(f"{error}. {JOBS_GO_ON}", outcome.FAILED.exit_code)
        except KeyboardInterrupt:
            show(JOBS_GO_ON)
            raise
        except Terminated:
            show(f"stopped by SIGTERM. {JOBS_GO_ON}")
            return outcome.AWAITING_RETRY.exit_code
        goes_on = "the same command goes on"
    ended = outcome.state_named(state.name)
    if ended == outcome.AWAITING_RETRY and state.message != ended.words:
        show(f"unfinished: {state.message}. The same command goes on", style="yellow")
    elif ended == outcome.AWAITING_RETRY:
        show(f"unfinished: {goes_on}; with --status the same command shows how they stand", style="dim")
    elif ended != outcome.COMPLETED:
        show(f"{state.name}: {state.message}", style="bold red")
    return ended.exit_code


def detach(slurm: SlurmStudy) -> int:
    """Gives the study to the site's follower, a job on the cluster, which starts it; returns the exit code."""
    if there := configured():
        raise BadInput(
            f"--detach is for where no server stands, and PREFECT_API_URL names {there.address}: leave it out, and "
            "the study goes on by itself while the workers of that server run; or unset PREFECT_API_URL"
        )
    show("asking SLURM whether it takes the jobs ...")
    with own_server():
        require_runnable(slurm)
    slurm.keep()
    job = FollowerJob(slurm.site)
    job.add(Entry(slurm.file, slurm.root, by_person=True))
    try:
        waits = job.ensure_queued()
        number = next((job_.id for job_ in job.jobs() if job_.state == "RUNNING"), waits)
    except SlurmError as error:
        return refuse(f"SLURM takes no job that follows the study ({error}): mend that and start it again, or --wait")
    show(f"job {number} ({job.name}) follows the study, and submits its jobs and the job that comes after itself")
    show(f"  to follow: tail -F {job.log}, or the same command with --status")
    show(f"  to cancel: ratchet cancel, with the same options; the job that follows alone: scancel --name={job.name}")
    return outcome.AWAITING_RETRY.exit_code


def _followed_here(slurm: SlurmStudy) -> Any:
    """The state in which the study ended, followed with a server and a worker of this command's own."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # the display shows them, once
    setup_logging(incremental=False)
    with terminated_by_sigterm():
        show("starting Prefect and a worker of the jobs; they end with this command ...")
        with own_services(slurm.site) as check, Display(slurm.handles, OUT):
            return follow(Follower(slurm), _show_change, polled=lambda _: check())


def _show_address(slurm: SlurmStudy) -> None:
    show(f"the study in Prefect: {address_of(slurm)}")


def _show_change(handle: Handle, stand: Any) -> None:
    show(f"{handle.label:<16} {handle.run.fingerprint[:12]}  {stand.line}")


def show_jobs(slurm: SlurmStudy) -> int:
    """Prints the exact text of each job that would be submitted now; returns the exit code."""
    with server_for_a_look():
        texts = checked(slurm)
    if texts.problems:
        refuse(texts.refusal)
    for handle, text in texts.scripts():
        waits = f" (waits for {', '.join(handle.waits_for)})" if handle.waits_for else ""
        show(f"\n--- {handle.label}{waits}\n{text}")
    if texts.problems:
        return refuse("the jobs could not run: what stands against them is said above their scripts")
    return 0


def stands(slurm: SlurmStudy) -> tuple[dict[str, Any], list[str]]:
    """How each stage stands by its jobs and flow runs, by fingerprint; or nothing, and why Prefect is not asked."""
    if not configured():
        return {}, []
    try:
        require_server()
        return dict(standings(slurm).standings), []
    except (BadInput, PrefectException, httpx.HTTPError) as error:
        return {}, [f"Prefect is not asked ({error}); what the run directories say:"]


def show_used(slurm: SlurmStudy) -> None:
    """Prints what the jobs of each stage used."""
    if used := efficiency.table(slurm.walk.handles, SlurmCommands().used):
        show_markdown(OUT, f"\n{used}")


def cancel(slurm: SlurmStudy) -> int:
    """Ends a study on SLURM: its flow runs, those of its stages, and its jobs, also where no server or worker is.

    BadInput when it was never started.
    """
    ended = []
    if not (files := mark_stopped(slurm)):
        raise BadInput(f"no such study was started below {slurm.root}: give what `--dispatch slurm` was given with it")
    try:
        if configured():
            require_server("ratchet cancel")
            ended.append(f"{cancel_runs(slurm, files)} flow runs")
    except (BadInput, httpx.HTTPError) as error:
        show(f"Prefect is not told ({error}); its worker tells it of the jobs", style="yellow")
    try:
        ended.append(f"{cancel_jobs(slurm, SlurmCommands())} jobs")
    except Unreachable as error:
        show(f"SLURM does not answer ({error}); the worker ends the jobs", style="yellow")
    if not ended:
        return refuse("neither Prefect nor SLURM was told: nothing more is started, but what runs goes on")
    show(f"cancelled: {' and '.join(ended)}. Nothing more is started; started again it goes on where it stands")
    return 0


@contextmanager
def server_for_a_look() -> Iterator[None]:
    """The server that PREFECT_API_URL names, else one for this block, which knows the deployments of stages."""
    if configured():
        require_server()
        yield
        return
    with own_server():
        yield


def doctor(options: argparse.Namespace) -> int:
    """`ratchet doctor`: looks at the site file, SLURM, the disks and the nodes; 1 when something is bad."""
    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value())
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    bad = 0
    for finding in look(options.site, database):
        bad += not finding.good
        show(f"{'good' if finding.good else 'BAD '}  {finding.text}", style=None if finding.good else "bold red")
    return outcome.FAILED.exit_code if bad else 0


def require_server(wanted_by: str = "--dispatch slurm without --wait or --detach") -> None:
    """Jobs outlive this command, so the server that shows them must too. BadInput where none stands."""
    if not (server := configured()):
        raise BadInput(
            f"{wanted_by} needs a Prefect server that stays, and PREFECT_API_URL, which says where it is: start one as "
            "docs/cluster.md has it (A server that stays)"
        )
    require_answer(server)
