"""The commands that have to do with a cluster alone: what is deployed for it, and the end of a study there."""

from __future__ import annotations

from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import temporary_settings

from deployments.deploy import JOBS, STUDIES, deploy, make_pool
from deployments.embedded import server_here
from deployments.page import Page
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.study.cancel import cancel_jobs, cancel_runs, mark_stopped
from flows.run import Where, at_site, refuse, require_server, show
from storage.errors import BadInput


def deployed(deployments: list[dict[str, Any]]) -> int:
    """Makes the pools and these deployments on the server that is there, and prints the name of each."""
    there = server_here()
    with temporary_settings(there.settings if there else {}):
        require_server("ratchet deploy")
        with get_client(sync_client=True) as client:
            for pool in (STUDIES, JOBS):
                make_pool(client, pool)
            for name in deploy(client, deployments):
                show(name)
    return 0


def cancel(page: Page, study: Any, where: Where) -> int:
    """Ends a study on SLURM: its flow runs, those of its stages, and its jobs, also where no server or worker is.

    BadInput when it was never started.
    """
    slurm, ended = at_site(page, study, where), []
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
