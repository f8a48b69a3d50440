"""Flow runs of a study's stages, as Prefect has them."""

import logging
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from deployments.dag.walk import Handle
from deployments.prefect.flow_run import AT_ONCE, flow_runs
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site, environment_of_worker, folder_of_pool, queue_of
from deployments.slurm.job.variables import JobValues, job_variables, run_name, stage_parameters
from deployments.slurm.pool.configuration import Deployments
from deployments.slurm.pool.runs import marked, passes
from deployments.slurm.study.cancel import cancel_runs, withdraw
from deployments.slurm.study.follow import Host
from deployments.slurm.study.preflight import ValuesOf, require_runnable
from deployments.slurm.study.standings import KnownRun, Look, Starter
from deployments.slurm.study.study import SlurmStudy
from storage import generations, locks

LOG = logging.getLogger("ratchet.slurm")
MANY_STAGES = 100
"""Number from which a start takes minutes on SQLite (benchmarks/README.md)."""


class KnownFlowRuns:
    """Flow runs of a study's stages that Prefect knows, by id and by the key that they were made with, read for many at
    once. One that had ended when it was read is asked for again: a person may have retried it since."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._by_id: dict[str, KnownRun] = {}
        self._by_key: dict[str, KnownRun] = {}
        self._asked: set[str] = set()
        """Ids and keys that were asked for."""

    def read(self, handles: Iterable[Handle], ids: Iterable[str]) -> None:
        """Two requests for each AT_ONCE."""
        self._read(ids, [_present_key(handle) for handle in handles])

    def _read(self, ids: Iterable[str], keys: Iterable[str]) -> None:
        for by, asked in (("id", [*filter(_is_id, ids)]), ("idempotency_key", [*keys])):
            wanted = sorted({*asked})
            for first in range(0, len(wanted), AT_ONCE):
                where: dict[str, Any] = {by: {"any_": wanted[first : first + AT_ONCE]}}
                for run in flow_runs(self._client, newest_only=True, **where):
                    self._by_id[str(run.id)] = self._by_key[run.idempotency_key or ""] = known(run)
            self._asked |= {*asked}

    def of(self, run: str) -> KnownRun | None:
        by_id = self._by_id.get(run)
        if by_id is not None and not by_id.over:
            return by_id
        if by_id is None and (run in self._asked or not _is_id(run)):
            return None
        try:
            return known(self._client.read_flow_run(UUID(run)))
        except ObjectNotFound:
            return None

    def made_by_now(self, handle: Handle) -> KnownRun | None:
        self._read([], [key := _present_key(handle)])
        return self._by_key.get(key)

    def made_for(self, handle: Handle) -> KnownRun | None:
        if (key := _present_key(handle)) not in self._asked:
            return self.made_by_now(handle)
        run = self._by_key.get(key)
        return self.of(run.id) if run is not None else None


class FlowRunStarter(Starter):
    """Starts stages as flow runs of the pool `gpu`."""

    def __init__(self, client: SyncPrefectClient, site: Site, study_file: Path, source: Path) -> None:
        self._client, self._site, self._file, self._source = client, site, study_file, source
        self._deployments = Deployments(client)

    def make(self, handle: Handle, person: bool, generation: int) -> KnownRun:
        name = handle.stage.name
        made = self._client.create_flow_run_from_deployment(
            self._deployments.named(handle.stage.deployment).id,
            parameters=stage_parameters(handle, self._file),
            name=run_name(handle),
            tags=[handle.run.study, name, *(f"seed-{seed}" for seed in sorted(handle.seeds))],
            idempotency_key=key_of(handle, generation),
            state=Scheduled(
                message="started by a person" if person else None,
                state_details=marked("person" if person else "automatic"),
            ),
            job_variables=job_variables(self._site, handle, self._source),
            work_queue_name=queue_of(self._site),
        )
        return known(made)


def known(run: FlowRun) -> KnownRun:
    state, created = run.state, run.created
    type_, name, message = (state.type.value, state.name, state.message) if state else ("", "", "")
    return KnownRun(str(run.id), type_, name or "", message or "", created.timestamp() if created else 0.0)


def key_of(handle: Handle, generation: int) -> str:
    """Key of a stage's flow run in a generation: Prefect makes one run for each key."""
    return f"{handle.run.path.absolute()}:{handle.run.fingerprint}:{generation}"


def _present_key(handle: Handle) -> str:
    return key_of(handle, generations.current(handle.run)["generation"])


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


class Prefect(Host):
    """Prefect has the runs, and its worker submits their jobs."""

    @contextmanager
    def looking(self, slurm: SlurmStudy, starts: bool, **how: Any) -> Iterator[Look]:
        with get_client(sync_client=True) as client:
            starter = FlowRunStarter(client, slurm.site, slurm.file, slurm.kept_source()) if starts else None
            yield Look(KnownFlowRuns(client), SlurmCommands(), starter=starter, **how)
            if not starts:
                _warn_of_idle_pools(client, slurm.site)

    def require_runnable(self, slurm: SlurmStudy) -> None:
        with get_client(sync_client=True) as client:
            number = require_runnable(slurm, values_at(client, slurm))
            _warn_of_idle_pools(client, slurm.site)
        if number >= MANY_STAGES:
            LOG.warning(
                "%d stages: a server whose database is SQLite, the default, takes some minutes to start so many; on "
                "PostgreSQL it takes a third of that (docs/cluster.md, PostgreSQL)",
                number,
            )

    def withdraw(self, slurm: SlurmStudy, why: str) -> None:
        withdraw(slurm, why)

    def cancel(self, slurm: SlurmStudy) -> None:
        cancel_runs(slurm, [slurm.file])

    def away(self, error: Exception) -> str:
        if isinstance(error, httpx.HTTPStatusError) and passes(error):
            return f"the Prefect server is busy (HTTP {error.response.status_code})"
        return (
            f"polled in vain: {error!r}"
            if isinstance(error, httpx.HTTPError) and passes(error)
            else super().away(error)
        )


def values_at(client: SyncPrefectClient, slurm: SlurmStudy) -> ValuesOf:
    """What the jobs of the study are made of on this server."""
    deployments = Deployments(client)

    def values_of(handle: Handle) -> tuple[JobValues, Container[str]]:
        folder = folder_of_pool(slurm.site, deployments.pool(handle.stage.deployment))
        return deployments.values(slurm.site, handle, slurm.present_source), environment_of_worker(folder)

    return values_of


def _warn_of_idle_pools(client: SyncPrefectClient, site: Site) -> None:
    """Without a worker nothing is submitted, and what runs is shown as it was when the last one died."""
    stages = client.read_deployments(flow_filter=FlowFilter.model_validate({"name": {"any_": ["stage"]}}))
    for pool in sorted({stage.work_pool_name for stage in stages if stage.work_pool_name}):
        status = client.read_work_pool(pool).status
        if status == WorkPoolStatus.NOT_READY or not locks.holder(folder_of_pool(site, pool) / "locks"):
            LOG.warning(
                "no worker serves the pool %s for the root %s: start one with `prefect worker start --pool %s`",
                *(pool, site.root, pool),
            )
        elif status == WorkPoolStatus.PAUSED:
            LOG.warning("the pool %s is paused: nothing is submitted until `prefect work-pool resume %s`", pool, pool)
