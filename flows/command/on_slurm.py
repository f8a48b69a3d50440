"""Commands for a cluster alone: a study's jobs there, how they stand, what they used, and their end."""

import argparse
import time
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle
from deployments.prefect.presence import configured, require_server
from deployments.slurm.cluster.client import SlurmCommands, SlurmError, Unreachable
from deployments.slurm.study import efficiency
from deployments.slurm.study.doctor import look
from deployments.slurm.study.engine import Engine, Studies
from deployments.slurm.study.follow import Follower, Host, follow, standings
from deployments.slurm.study.follower import Entry, FollowerJob
from deployments.slurm.study.preflight import checked, require_runnable
from deployments.slurm.study.standings import Standing
from deployments.slurm.study.stop import cancel_jobs, mark_stopped
from deployments.slurm.study.study import SlurmStudy
from deployments.waits import Terminated, terminated_by_sigterm
from flows.command.display import Display
from flows.command.terminal import OUT, refuse, show, show_markdown
from storage.errors import BadInput
from tasks.stage import outcome

JOBS_GO_ON = (
    "Jobs that run or are queued go on; what comes after them is submitted when the same command is started again, "
    "which finds them. To end them: ratchet cancel, with the same options"
)


def run_on_slurm(slurm: SlurmStudy, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code.

    Who waits needs no server: this process submits the jobs.
    """
    if not wait or configured():
        ended, message = _in_prefect(slurm, wait)
        goes_on = "the jobs go on by themselves while the worker of their pool runs"
    else:
        try:
            ended, message = _followed_here(slurm)
        except KeyboardInterrupt:
            show(JOBS_GO_ON)
            raise
        except Terminated:
            show(f"stopped by SIGTERM. {JOBS_GO_ON}")
            return outcome.AWAITING_RETRY.exit_code
        goes_on = "the same command goes on"
    if ended == outcome.AWAITING_RETRY and message != ended.words:
        show(f"unfinished: {message}. The same command goes on", style="yellow")
    elif ended == outcome.AWAITING_RETRY:
        show(f"unfinished: {goes_on}; with --status the same command shows how they stand", style="dim")
    elif ended != outcome.COMPLETED:
        show(f"{ended.name}: {message}", style="bold red")
    return ended.exit_code


def _in_prefect(slurm: SlurmStudy, wait: bool) -> tuple[outcome.PrefectState, str]:
    from deployments.slurm.study.cancel import address_of
    from deployments.slurm.study.flow_runs import Prefect

    def show_address(slurm: SlurmStudy) -> None:
        show(f"the study in Prefect: {address_of(slurm)}")

    require_server()
    return follow(Follower(Prefect(), slurm, show_address), _show_change, once=not wait)


def _followed_here(slurm: SlurmStudy) -> tuple[outcome.PrefectState, str]:
    """How the study ended, followed by this process, or by another one that serves the same root."""

    def tell(study: str, handle: Handle, standing: Standing) -> None:
        if study == slurm.file.stem:
            _show_change(handle, standing)

    job = FollowerJob(slurm.site)
    require_runnable(slurm)
    slurm.keep()
    entry, studies = Entry(slurm.file, slurm.root, by_person=True), Studies(slurm.site, job, tell)
    detached = slurm.file in {known.file for known in job.entries()}
    job.add(entry)
    try:
        with terminated_by_sigterm(), Display(slurm.handles, OUT):
            while True:
                studies.look()
                if end := studies.end_of(slurm):
                    return end
                time.sleep(studies.seconds_to_next)
    finally:
        if not detached:
            job.remove(entry)
        studies.end()


def detach(slurm: SlurmStudy) -> int:
    """Gives the study to the site's follower, a job on the cluster, which starts it; returns the exit code."""
    if there := configured():
        raise BadInput(
            f"--detach is for where no server stands, and PREFECT_API_URL names {there.address}: leave it out, and "
            "the study goes on by itself while the workers of that server run; or unset PREFECT_API_URL"
        )
    show("asking SLURM whether it takes the jobs ...")
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


def _show_change(handle: Handle, stand: Any) -> None:
    show(f"{handle.label:<16} {handle.run.fingerprint[:12]}  {stand.line}")


def show_jobs(slurm: SlurmStudy) -> int:
    """Prints the exact text of each job that would be submitted now; returns the exit code."""
    if configured():
        from prefect.client.orchestration import get_client

        from deployments.slurm.study.flow_runs import values_at

        require_server()
        with get_client(sync_client=True) as client:
            texts = checked(slurm, values_at(client, slurm))
    else:
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
    """How each stage stands by its jobs and runs, by fingerprint; or nothing, and why that cannot be said."""
    host: Host = Engine(slurm.site)
    try:
        if configured():
            from deployments.slurm.study.flow_runs import Prefect

            require_server()
            host = Prefect()
        return dict(standings(host, slurm).standings), []
    except Exception as error:
        if not (isinstance(error, BadInput) or host.away(error)):
            raise
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
    if configured():
        import httpx

        from deployments.slurm.study.cancel import cancel_runs

        try:
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


def doctor(options: argparse.Namespace) -> int:
    """`ratchet doctor`: looks at the site file, SLURM, the disks and the nodes; 1 when something is bad."""
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL
    from sqlalchemy import make_url

    url = make_url(PREFECT_API_DATABASE_CONNECTION_URL.value())
    database = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    bad = 0
    for finding in look(options.site, database):
        bad += not finding.good
        show(f"{'good' if finding.good else 'BAD '}  {finding.text}", style=None if finding.good else "bold red")
    return outcome.FAILED.exit_code if bad else 0
