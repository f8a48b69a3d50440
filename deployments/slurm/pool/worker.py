"""The worker of type `slurm`: turns scheduled flow runs into SLURM jobs, and shows in Prefect how they stand.

    RATCHET_SITE=mycluster prefect worker start --pool gpu

A thin shell around `Pool`. It submits and returns; one poll of SLURM every few seconds serves all jobs; it keeps
nothing that it could not find again, so it may be killed and started again at any moment. Jobs never talk to Prefect:
a stage writes to its run directory, and this worker shows in Prefect what stands there. Only one worker at a time
serves a pool; a second one stands by.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.plugins import load_prefect_collections
from prefect.workers.base import BaseWorker, BaseWorkerResult

from deployments.slurm.cluster.client import Refused, SlurmCommands, require_commands
from deployments.slurm.cluster.ownership import require_own
from deployments.slurm.cluster.partitions import Cluster, read_cluster
from deployments.slurm.cluster.resources import Resources
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.job.journal import jobs_folder, run_of
from deployments.slurm.job.origin import PREFECTS_OWN, asked_automatically
from deployments.slurm.job.plan import Plan, asked_now, continues, time_problem
from deployments.slurm.job.preflight import require
from deployments.slurm.job.variables import SlurmJobConfiguration, SlurmVariables, kept_resources, plan_of
from deployments.slurm.pool import environment
from deployments.slurm.pool.mirror import Beside, Mirror
from deployments.slurm.pool.places import UNDER_WAY, Alive, Places
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Action, Finish, Limits, Run, SetState
from deployments.slurm.pool.runs import PrefectRuns, passes
from deployments.slurm.pool.walks import Walks
from storage import locks
from storage.errors import BadInput, Held
from storage.permissions import close_to_others
from storage.run_directory import RunDirectory
from storage.visible import log_visibly, visible

LOG = logging.getLogger("ratchet.slurm")
CANCEL_POLL_SECONDS = 2.0
NOT_YET = "cannot be submitted now: "
NOTIFY_SECONDS = 60.0
CLUSTER_SECONDS = 300.0
STAND_BY_SECONDS = 10.0
SUBMITTED_AT_ONCE = 4
"""So many runs are on their way to a job. With some hundreds a server on SQLite stands still: its connections wait for
each other until they time out."""
FEW_JOBS, MANY_JOBS = 20, 1000
FEW_SECONDS, MANY_SECONDS = 5.0, 30.0


def interval_seconds(live_jobs: int) -> float:
    """Between two polls of SLURM: 5 s up to 20 jobs, 30 s at 1,000, longer beyond."""
    share = max(0.0, (live_jobs - FEW_JOBS) / (MANY_JOBS - FEW_JOBS))
    return FEW_SECONDS + share * (MANY_SECONDS - FEW_SECONDS)


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
        self._site: Site | None = None
        self._lock: locks.Lock | None = None
        self._jobs: Pool | None = None
        self._runs: PrefectRuns | None = None
        self._mirror: Beside | None = None
        self._places: Places | None = None
        self._walks = Walks()
        self._standing_by = ""
        self._cluster: tuple[float, Cluster] | None = None
        self._watching = anyio.CancelScope()
        self._few_at_once = anyio.Semaphore(SUBMITTED_AT_ONCE)

    async def setup(self) -> None:
        _refuse_another_of_this_type()
        require_commands()
        logging.getLogger("ratchet").setLevel(logging.INFO)
        log_visibly()
        self._site = read_site()
        close_to_others(self._site.permissions)  # scripts and logs of jobs, which begin with the umask of this process
        require_own([Path(self._site.root) / ".slurm" / self._work_pool_name], self._site.trust_group)
        await super().setup()
        assert self._runs_task_group is not None
        self._runs_task_group.start_soon(self._watch)

    async def teardown(self, *exc_info: Any) -> None:
        self._watching.cancel()
        self._walks.stop()
        if self._lock is not None:
            self._lock.release()
        await super().teardown(*exc_info)

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Nothing while another worker serves the pool, before a poll has said how many may come, or while the server
        is away."""
        if self._jobs is not None and self._places is not None and self._places.are_kept:
            with self._server_may_be_away():
                return await super().get_and_submit_flow_runs()
        return []

    async def sync_with_backend(self) -> None:
        with self._server_may_be_away():
            await super().sync_with_backend()

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
        job_id = await self._submit(flow_run, configuration) if self._jobs is not None else None
        if task_status is not None:
            task_status.started(job_id)
        return BaseWorkerResult(status_code=0, identifier=job_id or "")

    async def _submit(self, flow_run: FlowRun, configuration: SlurmJobConfiguration) -> str | None:
        """The job's id when SLURM gave it; else the run's state shows why there is no job, or a later poll finds it."""
        assert self._jobs is not None and self._site is not None
        shown, may_wait = "", True  # somebody may be editing the site file or the study
        try:
            automatic, shown, state_id = await self._asked_for_by(flow_run)
            await anyio.to_thread.run_sync(self._read_site_again)
            given = flow_run.parameters.get("study_file", "")
            study = await anyio.to_thread.run_sync(kept_resources, given, self._site.trust_group)
            may_wait = False
            plan = self._plan(flow_run, configuration, study, automatic, state_id)
            # for a disk that is away, say; a first job fails at once, and a person is notified
            may_wait = await anyio.to_thread.run_sync(continues, plan)
            await anyio.to_thread.run_sync(self._require_runnable, plan, plan.resources)
            may_wait = False  # for memory that no node has, or time in which no job gains a step
            await anyio.to_thread.run_sync(self._require_memory, plan)
            if problem := await anyio.to_thread.run_sync(time_problem, plan):
                raise BadInput(problem)
            return await anyio.to_thread.run_sync(self._jobs.submit, plan)
        except (httpx.HTTPError, OSError) as error:  # the run stays Pending, and a later poll makes it Scheduled again
            LOG.warning("flow run %s: not submitted now: %s", flow_run.name, error)
        except (Refused, BadInput) as error:
            if may_wait and isinstance(error, BadInput):
                message = f"{NOT_YET}{error}"
                was_set = await self._set(flow_run, "SCHEDULED", "AwaitingRetry", message, Limits.not_now_delay)
            else:
                message = str(error)
                was_set = await self._set(flow_run, "FAILED", "Failed", message)
            if was_set and message != shown:  # a person was notified when it was put off for the same cause before
                await anyio.to_thread.run_sync(self._notify, flow_run.name, str(error))
        return None

    async def _set(self, flow_run: FlowRun, type_: str, name: str, message: str, delay: float = 0.0) -> bool:
        """Whether the run was still open, and is set to this state: else a poll set its end before."""
        now = await self.client.read_flow_run(flow_run.id)
        if now.state is None or now.state.is_final():
            return False
        run = Run(str(now.id), str(now.state.id), now.state.type.value, now.state.name or "")
        assert self._runs is not None
        return await anyio.to_thread.run_sync(
            self._runs.set_state, SetState(run, type_, name, message, delay, "put off")
        )

    def _read_site_again(self) -> None:
        """Takes what was edited; a root that moved only when the worker is started again, since its runs are there."""
        assert self._site is not None
        self._site = read_site().model_copy(update={"root": self._site.root})

    async def _asked_for_by(self, flow_run: FlowRun) -> tuple[bool, str, str]:
        """Whether Ratchet itself asked for the job; the message of the newest scheduled state, which may only put it
        off; and the id of the present state, which is later than the one that `flow_run` has."""
        states = await self.client.read_flow_run_states(flow_run.id)
        ours = [state for state in states if state.is_scheduled() and state.name not in PREFECTS_OWN]
        newest = max(ours, key=lambda state: state.timestamp, default=None)
        present = (await self.client.read_flow_run(flow_run.id)).state
        return asked_automatically(states), (newest and newest.message) or "", str(present.id) if present else ""

    def _plan(
        self,
        flow_run: FlowRun,
        configuration: SlurmJobConfiguration,
        study: dict[str, dict[str, Any]],
        automatic: bool,
        state_id: str,
    ) -> Plan:
        assert self._site is not None
        return plan_of(
            configuration,
            self._site,
            str(flow_run.id),
            flow_run.name,
            flow_run.parameters,
            flow_run.job_variables or {},
            study,
            self._own_folder(flow_run),
            automatic,
            state_id,
        )

    def _require_runnable(self, plan: Plan, asked: Resources) -> None:
        """BadInput when the job could not run here; the cluster is asked at most every few minutes."""
        assert self._site is not None
        if self._cluster is None or time.monotonic() - self._cluster[0] > CLUSTER_SECONDS:
            self._cluster = (time.monotonic(), read_cluster())
        require(
            asked,
            self._cluster[1],
            plan.folder,
            plan.label,
            strict_lead=self._site.strict_lead,
            may_wait=True,
        )

    def _require_memory(self, plan: Plan) -> None:
        """BadInput when a job ran out of memory and the next one, which asks for more, could not run here."""
        memory_gb = asked_now(plan).memory_gb
        if memory_gb > plan.resources.memory_gb:
            try:  # nodes that failed are left out of it: they are taken again when there are no others
                self._require_runnable(plan, plan.resources.model_copy(update={"memory_gb": memory_gb}))
            except BadInput as error:
                raise BadInput(f"a job ran out of memory, and more cannot be had here: {error}") from None

    def _folder_of(self, flow_run: FlowRun) -> Path:
        return Path((flow_run.job_variables or {}).get("folder") or self._own_folder(flow_run))

    def _own_folder(self, flow_run: FlowRun) -> Path:
        """The folder of a run that a person made without our dispatch: the stage's own, when its parameters name it."""
        assert self._site is not None
        given = flow_run.parameters
        if given.get("fingerprint") and {"root", "stage", "study_file"} <= given.keys():
            study = Path(given["study_file"]).parent.parent.name
            return jobs_folder(RunDirectory(Path(given["root"]), study, given["stage"], given["fingerprint"]))
        return Path(self._site.root) / ".slurm" / self._work_pool_name / str(flow_run.id) / "jobs"

    async def _watch(self) -> None:
        """Serves the pool while this worker holds it, and stands by while another one does."""
        with self._watching:
            while True:
                try:
                    if await self._serves():
                        await anyio.to_thread.run_sync(self._poll)
                        await self.get_and_submit_flow_runs()  # a place that was found free is given at once
                        await anyio.to_thread.run_sync(self._tell)
                        await self._wait()
                    else:
                        await anyio.sleep(STAND_BY_SECONDS)
                except httpx.HTTPError as error:
                    LOG.warning("the Prefect server does not answer (%s); the jobs go on", error)
                    await anyio.sleep(STAND_BY_SECONDS)
                except Exception:
                    LOG.exception("a poll failed; the next one follows")
                    await anyio.sleep(STAND_BY_SECONDS)

    async def _serves(self) -> bool:
        """Whether this worker holds the pool; takes it when nobody does."""
        assert self._site is not None
        if self._lock is not None:
            try:
                self._lock.check()
                return True
            except locks.LockLost as lost:
                LOG.warning("this worker stands by: %s", lost)
                self._lock = self._jobs = None
        folder = Path(self._site.root) / ".slurm" / self._work_pool_name
        try:
            self._lock = await anyio.to_thread.run_sync(partial(locks.acquire, folder / "locks"))
        except Held as held:
            if str(held) != self._standing_by:
                LOG.info("this worker stands by: %s", held)
            self._standing_by = str(held)
            return False
        LOG.info("this worker serves the pool %s", self._work_pool_name)
        await anyio.to_thread.run_sync(environment.tell, folder)
        self._standing_by = ""
        client = get_client(sync_client=True)
        self._runs = PrefectRuns(self._work_pool_name, self._folder_of, client)
        self._mirror = Beside(Mirror(get_client(sync_client=True)))
        self._places = Places(self._runs, folder / "places.json")
        self._jobs = Pool(
            SlurmCommands(),
            self._runs,
            ours=self._still_serves,
            arrays=folder / "arrays",
            more_come=lambda: bool(self._submitting_flow_run_ids),
        )
        self._walks.ask(Path(self._site.root))  # what ended while no worker watched
        return True

    def _still_serves(self) -> bool:
        """Whether no other worker took the pool: asked before whatever could not be taken back."""
        try:
            if (lock := self._lock) is not None:
                lock.check()
            return lock is not None
        except locks.LockLost:
            return False

    def _poll(self) -> None:
        """One poll: reconcile first, then show, then set how many may come."""
        assert self._jobs is not None
        try:
            self._jobs.poll()
        finally:  # what was done before the server went away is shown all the same
            self._show(self._jobs.done)
            self._ask_for_walks(self._jobs.done)
        if self._jobs.alive is not None:
            self._keep_places(self._jobs.alive)

    def _ask_for_walks(self, actions: list[Action]) -> None:
        """What waited for a stage that ended, or for the last one under way, may start now."""
        for action in actions:
            if isinstance(action, Finish) and action.end.follows != "AwaitingRetry" and not action.end.again:
                with suppress(ValueError):  # a folder that a person gave is of no study
                    run = run_of(Path(action.run.folder))
                    self._walks.ask(run.root, run.study)

    def _keep_places(self, alive: Alive) -> None:
        assert self._places is not None and self._site is not None
        with suppress(BadInput):  # somebody is editing the site file: the last good one stands
            self._read_site_again()
        self._places.keep(self._site, alive)

    def _tell(self) -> None:
        assert self._jobs is not None and self._places is not None
        self._places.tell(sum(one.run.type in UNDER_WAY for one in self._jobs.seen))

    def _show(self, actions: list[Action]) -> None:
        """Shows how all jobs stand, and notifies a person of what these actions ended or found."""
        assert self._jobs is not None and self._mirror is not None
        ended = {
            action.run.id: replace(action.submission, end=action.end)
            for action in actions
            if isinstance(action, Finish)
        }
        names = {one.run.id: one.submissions[-1].name for one in self._jobs.seen if one.submissions}
        for action in actions:
            if isinstance(action, SetState) and action.needs_person:
                self._notify(names[action.run.id], action.message)
        for one in self._jobs.seen:
            if one.run.id in ended:
                self._mirror.show_end(one, ended[one.run.id])
                end = ended[one.run.id].end
                if end is not None and end.follows == "Failed":
                    self._notify(ended[one.run.id].name, end.message)
        if alive := [one for one in self._jobs.seen if one.run.id not in ended]:
            self._mirror.show(alive)

    def _notify(self, name: str, message: str) -> None:
        """Notifies a person, by the site's command, of a stage that does not go on by itself."""
        assert self._site is not None
        if self._site.notify:
            notify(self._site.notify, f"Ratchet: {name} needs you", message)

    async def _wait(self) -> None:
        """Until the next poll of SLURM, or a walk has started stages; a cancel does not wait for it."""
        assert self._jobs is not None and self._runs is not None
        until = anyio.current_time() + interval_seconds(len(self._jobs.live))
        while (left := until - anyio.current_time()) > 0:
            if await anyio.to_thread.run_sync(self._walks.look):
                return
            await anyio.sleep(min(left, CANCEL_POLL_SECONDS))
            cancelling = await anyio.to_thread.run_sync(self._runs.cancelling)
            if cancelling:
                await anyio.to_thread.run_sync(self._jobs.cancel_at_once, cancelling)


def notify(shell_command: str, subject: str, message: str) -> None:
    """Runs the site's command; one that fails is only logged."""
    try:
        subprocess.run(
            shell_command,
            shell=True,
            input=visible(message),
            text=True,
            timeout=NOTIFY_SECONDS,
            check=True,
            capture_output=True,
            env=os.environ | {"RATCHET_SUBJECT": " ".join(visible(subject).split())},
        )
    except (OSError, subprocess.SubprocessError) as error:
        LOG.warning("the site's notify command failed: %s", error)


def _refuse_another_of_this_type() -> None:
    """Of two packages with a worker of this type Prefect takes the last one loaded, whichever that is."""
    load_prefect_collections()

    def below(cls: type[Any]) -> set[type[Any]]:
        return {cls, *(deeper for sub in cls.__subclasses__() for deeper in below(sub))}

    others = {cls for cls in below(BaseWorker) if getattr(cls, "type", None) == "slurm"} - {SlurmWorker}
    if others:
        names = ", ".join(sorted(f"{cls.__module__}.{cls.__qualname__}" for cls in others))
        raise RuntimeError(f"another package has a worker of type slurm too ({names}): uninstall it")
