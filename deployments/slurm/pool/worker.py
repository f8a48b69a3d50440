"""The worker of type `slurm`: turns scheduled flow runs into SLURM jobs, and shows in Prefect how they stand.

    RATCHET_SITE=mycluster prefect worker start --pool gpu

A thin shell around `Service`. It submits and returns; one poll of SLURM every few seconds serves all jobs; it keeps
nothing that it could not find again, so it may be killed and started again at any moment. Jobs never talk to Prefect:
a stage writes to its run directory, and this worker shows in Prefect what stands there. Only one worker at a time
serves a pool; a second one stands by.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectAlreadyExists
from prefect.plugins import load_prefect_collections
from prefect.workers.base import BaseWorker, BaseWorkerResult

from deployments.slurm.cluster.client import require_commands
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.site import Site, folder_of_pool, queue_of, read_site
from deployments.slurm.pool.configuration import SlurmJobConfiguration, SlurmVariables
from deployments.slurm.pool.mirror import Beside, Mirror
from deployments.slurm.pool.runs import UNNAMED, PrefectRuns, passes
from deployments.slurm.pool.service import Service, interval_seconds
from deployments.slurm.pool.walks import Walks
from storage import locks
from storage.errors import Held
from storage.permissions import close_to_others
from storage.visible import log_visibly

LOG = logging.getLogger("ratchet.slurm")
CANCEL_POLL_SECONDS = 2.0
STAND_BY_SECONDS = 10.0
SUBMITTED_AT_ONCE = 4
"""Number of runs on their way to a job. With some hundreds a server on SQLite stands still: its connections wait for
each other until they time out."""


class SlurmWorker(BaseWorker[SlurmJobConfiguration, SlurmVariables, BaseWorkerResult]):
    """Runs stages as SLURM jobs."""

    type = "slurm"
    job_configuration = SlurmJobConfiguration
    job_configuration_variables = SlurmVariables
    _description = "Runs the stages of Ratchet studies as SLURM jobs that continue by themselves."
    _display_name = "SLURM (Ratchet)"
    _logo_url = "https://slurm.schedmd.com/slurm_logo.png"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._service: Service | None = None
        """The pool, while this worker holds it."""
        self._standing_by = ""
        self._watching = anyio.CancelScope()
        self._few_at_once = anyio.Semaphore(SUBMITTED_AT_ONCE)

    async def setup(self) -> None:
        _refuse_another_of_this_type()
        require_commands()
        logging.getLogger("ratchet").setLevel(logging.INFO)
        log_visibly()
        site = read_site()
        close_to_others(site.permissions)  # scripts and logs of jobs, which begin with the umask of this process
        require_own([folder_of_pool(site, self._work_pool_name)], site.trust_group)
        self._queue = queue_of(site)
        await super().setup()
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._watch, site)

    async def teardown(self, *exc_info: Any) -> None:
        self._watching.cancel()
        if self._service is not None:
            self._walks.stop()  # whoever serves the pool next walks all studies first
            self._service.end()
        await super().teardown(*exc_info)

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Nothing while another worker serves the pool, before a poll has said how many may come, or while the server
        is away; and none of another root's."""
        if self._work_queues and self._service is not None and self._service.places.are_kept:
            with self._server_may_be_away():
                return await super().get_and_submit_flow_runs()
        return []

    async def sync_with_backend(self) -> None:
        with self._server_may_be_away():
            await super().sync_with_backend()
            if self._client is not None and not self._work_queues:
                with suppress(ObjectAlreadyExists):
                    await self._client.create_work_queue(self._queue, work_pool_name=self._work_pool_name)
                self._work_queues = {self._queue, UNNAMED}

    @contextmanager
    def _server_may_be_away(self) -> Iterator[None]:
        """Prefect ends a worker whose calls fail for some minutes; nobody would then watch its jobs."""
        try:
            yield
        except httpx.HTTPError as error:
            if not (passes(error) and self._has_successfully_synced):
                raise

    async def _submit_run(self, flow_run: FlowRun) -> None:
        async with self._few_at_once:
            await self._submit_one(flow_run)

    async def _submit_one(self, flow_run: FlowRun) -> None:
        with self._server_may_be_away():
            try:
                await super()._submit_run(flow_run)
            except httpx.HTTPError:
                self._submitting_flow_run_ids.discard(flow_run.id)  # a later poll of Prefect finds it again
                self._release_limit_slot(flow_run.id)
                if self._cancelling_observer is not None:
                    self._cancelling_observer.remove_in_flight_flow_run_id(flow_run.id)
                raise

    async def _propose_crashed_state(self, flow_run: FlowRun, message: str, *client: Any, **named: Any) -> None:
        """Leaves a run Pending whose submission failed with the server: it is soon scheduled again."""
        error = sys.exception()  # Prefect calls this while it handles it
        if isinstance(error, httpx.HTTPError) and passes(error):
            LOG.warning("flow run %s: not submitted now: %s", flow_run.name, error)
        else:
            await super()._propose_crashed_state(flow_run, message, *client, **named)

    async def run(
        self,
        flow_run: FlowRun,
        configuration: SlurmJobConfiguration,
        task_status: anyio.abc.TaskStatus[Any] | None = None,
    ) -> BaseWorkerResult:
        """Submits and returns. Status 0 always: for another one Prefect sets a state late, perhaps over a newer one."""
        # without the pool, lost a moment ago, the worker that serves it now finds the run unsubmitted
        service, job_id = self._service, None
        if service is not None:
            asked = self._runs.asked(flow_run)
            job_id = await anyio.to_thread.run_sync(service.submit, asked, configuration.values)
        if task_status is not None:
            task_status.started(job_id)
        return BaseWorkerResult(status_code=0, identifier=job_id or "")

    async def _watch(self, site: Site) -> None:
        """Serves the pool while this worker holds it, and stands by while another one does."""
        with self._watching:
            while True:
                try:
                    if service := await self._serving(site):
                        await anyio.to_thread.run_sync(service.poll)
                        await self.get_and_submit_flow_runs()  # a place that was found free is given at once
                        await anyio.to_thread.run_sync(service.tell)
                        await self._wait(service)
                    else:
                        await anyio.sleep(STAND_BY_SECONDS)
                except httpx.HTTPError as error:
                    LOG.warning("the Prefect server does not answer (%s); the jobs go on", error)
                    await anyio.sleep(STAND_BY_SECONDS)
                except Exception:
                    LOG.exception("a poll failed; the next one follows")
                    await anyio.sleep(STAND_BY_SECONDS)

    async def _serving(self, site: Site) -> Service | None:
        """The pool, taken when nobody holds it; None while another worker does."""
        if self._service is not None:
            try:
                self._service.lock.check()
                return self._service
            except locks.LockLost as lost:
                LOG.warning("this worker stands by: %s", lost)
                self._walks.stop()
                self._service.end()
                self._service = None
        try:
            folder = folder_of_pool(site, self._work_pool_name)
            lock = await anyio.to_thread.run_sync(locks.acquire, folder / "locks")
        except Held as held:
            if str(held) != self._standing_by:
                LOG.info("this worker stands by: %s", held)
            self._standing_by = str(held)
            return None
        LOG.info("this worker serves the pool %s", self._work_pool_name)
        self._standing_by = ""
        try:
            self._service = await anyio.to_thread.run_sync(self._begun, site, lock)
        except BaseException:
            lock.release()
            raise
        return self._service

    def _begun(self, site: Site, lock: locks.Lock) -> Service:
        pool, client = self._work_pool_name, get_client(sync_client=True)
        self._runs = PrefectRuns(pool, queue_of(site), folder_of_pool(site, pool), client)
        self._runs.take_back(folder_of_pool(site, pool) / "places.json")
        shown = Beside(Mirror(get_client(sync_client=True)))
        self._walks = Walks()  # first of what ended while no worker watched
        self._walks.ask(Path(site.root))
        service = Service(
            pool,
            site,
            lock,
            self._runs,
            shown,
            more_come=lambda: bool(self._submitting_flow_run_ids),
            ended=lambda run: self._walks.ask(run.root, run.study),
        )
        service.begin()
        return service

    async def _wait(self, service: Service) -> None:
        """Until the next poll of SLURM, or a walk has started stages; a cancel does not wait for it."""
        until = anyio.current_time() + interval_seconds(len(service.pool.live))
        while (left := until - anyio.current_time()) > 0:
            if await anyio.to_thread.run_sync(self._walks.look):
                return
            await anyio.sleep(min(left, CANCEL_POLL_SECONDS))
            await anyio.to_thread.run_sync(service.cancel_at_once)


def _refuse_another_of_this_type() -> None:
    """If two packages register a worker of this type, Prefect silently uses the last one loaded."""
    load_prefect_collections()

    def below(cls: type[Any]) -> set[type[Any]]:
        return {cls, *(deeper for sub in cls.__subclasses__() for deeper in below(sub))}

    others = {cls for cls in below(BaseWorker) if getattr(cls, "type", None) == "slurm"} - {SlurmWorker}
    if others:
        names = ", ".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in others))
        raise RuntimeError(f"another package has a worker of type slurm too ({names}): uninstall it")
