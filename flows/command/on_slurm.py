"""Commands for a cluster alone: a study's jobs there, how they stand, what they used, and their end."""

import argparse
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle
from deployments.prefect.presence import configured, require_server
from deployments.slurm.cluster.client import SlurmCommands, SlurmError, Unreachable
from deployments.slurm.study import efficiency
from deployments.slurm.study import study as study_file
from deployments.slurm.study.doctor import look
from deployments.slurm.study.engine import Engine
from deployments.slurm.study.follow import entrust, followed
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.preflight import checked
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

NOBODY = (
    "nobody follows this study: jobs that run or are queued go on, and nothing is submitted after them. Start it "
    "again, with --wait or --detach"
)


def run_on_slurm(slurm: SlurmStudy, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code.

    Who waits needs no server: this process submits the jobs. Where a server stands, its flow run shows the study.
    """
    address = _shown_in_prefect(slurm, wait) if configured() or not wait else ""
    if address:
        show(f"the study in Prefect: {address}")
    if not wait:
        return outcome.AWAITING_RETRY.exit_code
    try:
        with terminated_by_sigterm(), Display(slurm.handles, OUT):
            ended, message = followed(slurm, _show_change, is_entrusted=bool(address))
    except KeyboardInterrupt:
        show(JOBS_GO_ON)
        raise
    except Terminated:
        show(f"stopped by SIGTERM. {JOBS_GO_ON}")
        return outcome.AWAITING_RETRY.exit_code
    if ended == outcome.AWAITING_RETRY:
        show("unfinished: the same command goes on; with --status it shows how the jobs stand", style="dim")
    elif ended != outcome.COMPLETED:
        show(f"{ended.name}: {message}", style="bold red")
    return ended.exit_code


def _shown_in_prefect(slurm: SlurmStudy, wait: bool) -> str:
    """Starts the study, and returns the address of its flow run, which a worker of the pool `ratchet` runs; empty where
    this command waits and no server answers."""
    import httpx
    from prefect.exceptions import PrefectException

    from deployments.slurm.study.cancel import address_of

    try:
        require_server()
    except BadInput as error:
        if not wait:
            raise
        show(f"not shown in Prefect: {error}", style="yellow")
        return ""
    entrust(slurm, Looks(slurm.site))
    try:
        return address_of(slurm)
    except (httpx.HTTPError, PrefectException) as error:
        raise BadInput(f"the study is started, but not shown in Prefect: {error}. Start it again") from None


def detach(slurm: SlurmStudy) -> int:
    """Gives the study to the site's looks, small jobs on the cluster, which start it; returns the exit code."""
    if there := configured():
        raise BadInput(
            f"--detach is for where no server stands, and PREFECT_API_URL names {there.address}: leave it out, and "
            "the study goes on by itself while the workers of that server run; or unset PREFECT_API_URL"
        )
    show("asking SLURM whether it takes the jobs ...")
    looks = Looks(slurm.site)
    entrust(slurm, looks)
    try:
        number = looks.submit()
    except SlurmError as error:
        return refuse(
            f"SLURM takes no job that looks after the study ({error}): mend that and start it again, or --wait"
        )
    show(f"job {number} ({looks.name}) submits the study's jobs, and small jobs like it go on with that")
    show(f"  to follow: tail -F {looks.log}, or the same command with --status")
    show(f"  to cancel: ratchet cancel, with the same options; the looks alone: scancel --name={looks.name}")
    return outcome.AWAITING_RETRY.exit_code


def _show_change(handle: Handle, stand: Any) -> None:
    show(f"{handle.label:<16} {handle.run.fingerprint[:12]}  {stand.line}")


def show_jobs(slurm: SlurmStudy) -> int:
    """Prints the exact text of each job that would be submitted now; returns the exit code."""
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
    """How each stage stands by its jobs and runs, by fingerprint; or nothing, and why that cannot be said. And whether
    nobody follows the study, which was started and has not ended."""
    try:
        is_active = slurm.file.exists() and not study_file.stopped(slurm.file).exists()
        is_followed = slurm.file in {entry.file for entry in Looks(slurm.site).entries()}
        return dict(Engine(slurm.site).standings(slurm).standings), [NOBODY] if is_active and not is_followed else []
    except (BadInput, OSError) as error:
        return {}, [f"the jobs are not asked ({error}); what the run directories say:"]


def show_used(slurm: SlurmStudy) -> None:
    """Prints what the jobs of each stage used."""
    if used := efficiency.table(slurm.walk.handles, SlurmCommands().used):
        show_markdown(OUT, f"\n{used}")


def cancel(slurm: SlurmStudy) -> int:
    """Ends a study on SLURM: its jobs, and its flow run where a server stands.

    BadInput when it was never started.
    """
    ended = []
    if not (files := mark_stopped(slurm)):
        raise BadInput(f"no such study was started below {slurm.root}: give what `--dispatch slurm` was given with it")
    if configured():
        import httpx

        from deployments.slurm.study.cancel import cancel_flow_runs

        try:
            require_server("ratchet cancel")
            ended.append(f"{cancel_flow_runs(slurm, files)} flow runs")
        except (BadInput, httpx.HTTPError) as error:
            show(f"Prefect is not told ({error}); the study's flow run ends when it looks next", style="yellow")
    try:
        ended.append(f"{cancel_jobs(slurm, SlurmCommands(), files)} jobs")
    except Unreachable as error:
        show(f"SLURM does not answer ({error}); who follows the study ends its jobs", style="yellow")
    if not ended:
        return refuse("SLURM was not told: nothing more is started, but what runs goes on")
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
