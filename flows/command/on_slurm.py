"""Commands for a cluster alone: a study's jobs there, how they stand, what they used, and their end.

It takes Prefect's client.
"""

from __future__ import annotations

from typing import Any

import httpx
from prefect.exceptions import PrefectException

from deployments.dag.walk import Handle
from deployments.prefect.embedded import configured, require_answer
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.study import efficiency
from deployments.slurm.study.cancel import address_of, cancel_jobs, cancel_runs, mark_stopped
from deployments.slurm.study.follow import Follower, follow, standings
from deployments.slurm.study.preflight import checked
from deployments.slurm.study.study import SlurmStudy
from flows.command.terminal import OUT, refuse, show, show_markdown
from storage.errors import BadInput
from tasks.stage import outcome


def run_on_slurm(slurm: SlurmStudy, wait: bool) -> int:
    """Starts what is ready, and with `wait` stays until nothing is under way; returns the exit code."""
    require_server()

    def kept(slurm: SlurmStudy) -> None:
        show(f"the study in Prefect: {address_of(slurm)}")

    def changed(handle: Handle, stand: Any) -> None:
        show(f"{handle.label:<16} {handle.run.fingerprint[:12]}  {stand.line}")

    state = follow(Follower(slurm, kept), changed, once=not wait)
    ended = outcome.state_named(state.name)
    if ended == outcome.AWAITING_RETRY and state.message != ended.words:
        show(f"unfinished: {state.message}. The same command goes on", style="yellow")
    elif ended == outcome.AWAITING_RETRY:
        show(
            "unfinished: the jobs go on by themselves while the worker of their pool runs; with --status the same "
            "command shows how they stand",
            style="dim",
        )
    elif ended != outcome.COMPLETED:
        show(f"{state.name}: {state.message}", style="bold red")
    return ended.exit_code


def show_jobs(slurm: SlurmStudy) -> int:
    """Prints the exact text of each job that would be submitted now; returns the exit code."""
    require_server()
    found = checked(slurm)
    if found.problems:
        refuse(found.refusal)
    for handle, text in found.scripts():
        waits = f" (waits for {', '.join(handle.waits_for)})" if handle.waits_for else ""
        show(f"\n--- {handle.label}{waits}\n{text}")
    if found.problems:
        return refuse("the jobs could not run: what stands against them is said above their scripts")
    return 0


def stands(slurm: SlurmStudy) -> tuple[dict[str, Any], list[str]]:
    """How each stage stands by its jobs and flow runs, by fingerprint; or nothing, and why Prefect is not asked."""
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


def require_server(wanted_by: str = "--dispatch slurm") -> None:
    """Jobs outlive this command, so the server that shows them must too."""
    if not (server := configured()):
        raise BadInput(
            f"{wanted_by} needs a Prefect server that stays, and PREFECT_API_URL, which says where it is: "
            "docs/cluster.md has a port and a password made (The server: port, password, database), then start "
            "`.venv/bin/prefect server start` on the login node"
        )
    require_answer(server)
