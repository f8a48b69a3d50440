"""The pool's flow runs as Prefect has them, and what is written back: states, job ids.

Who asked for a run's next job is kept in the scheduled state that asks for it. Prefect keeps no author of a state, and
a retry in its UI or by its command has the type, and in the UI the name, of the states that we set. A state's details
are the only part of it besides its texts that the server keeps as it was given: the client drops the data of a state,
and tags or variables belong to the run, so that a worker that dies between two requests would leave them without their
state. Of the details, no rule of Prefect reads the keys of inputs unless the run is paused, and a state that Prefect
or a person sets has none.
"""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import FlowRun, StateDetails
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import State, StateType

from deployments.prefect.flow_run import AT_ONCE, flow_runs, of_type
from deployments.slurm.job.journal import jobs_folder
from deployments.slurm.job.plan import Origin
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.service import Asked
from storage import durable
from storage.run_directory import RunDirectory

LOG = logging.getLogger("ratchet.slurm")
Answer = TypeVar("Answer")
AGAIN_AFTER_SECONDS = (2.0, 5.0, 15.0)
ALIVE = of_type(StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
NOT_ENDED = of_type(StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED)
"""Under way, with or without a job yet, and not being cancelled."""
UNNAMED = "default"
"""Prefect's queue of the runs for which nobody named one: started by hand, or by an earlier version."""
CANCELS = (StateType.CANCELLING, StateType.CANCELLED)
ENDED_BY_OTHERS = of_type(StateType.CANCELLED, StateType.CRASHED)


_KEY = "ratchet-origin"
PREFECTS_OWN = ("Late", "AwaitingConcurrencySlot")
"""Names of scheduled states that Prefect sets by itself: nobody asks for anything by them."""


def marked(origin: Origin) -> StateDetails:
    """Details for a new state of this origin."""
    return StateDetails() if origin == "person" else StateDetails(run_input_keyset={_KEY: origin})


def origin_of(state: State[Any]) -> Origin:
    """Tells who asked for a job by this state; `put off` for a state by which nobody did.

    A state that an earlier version set has no mark and counts as a person's: once a run, since the next one has it.
    """
    mark = (state.state_details.run_input_keyset or {}).get(_KEY)
    if state.name in PREFECTS_OWN or mark == "put off":
        return "put off"
    return "automatic" if mark == "automatic" else "person"


def asked_automatically(states: Iterable[State[Any]]) -> bool:
    """True where Ratchet itself asked for the job that comes next, by all states of its flow run."""
    asked = [state for state in states if state.is_scheduled() and origin_of(state) != "put off"]
    newest = max(asked, key=lambda state: state.timestamp, default=None)
    return newest is not None and origin_of(newest) == "automatic"


def passes(error: httpx.HTTPError) -> bool:
    """True where the server may answer otherwise later: it was away or busy, or failed itself."""
    busy = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS)
    return not isinstance(error, httpx.HTTPStatusError) or (
        error.response.status_code >= 500 or error.response.status_code in busy
    )


def patiently(ask: Callable[[], Answer]) -> Answer:
    """Answer of the server; one that is busy or away is asked again, for some 20 s. Raises the last httpx.HTTPError."""
    for wait in AGAIN_AFTER_SECONDS:
        try:
            return ask()
        except httpx.HTTPError as error:
            if not passes(error):
                raise
            LOG.warning("the Prefect server is busy or away (%s); it is asked again in %g s", error, wait)
            time.sleep(wait)
    return ask()


class PrefectRuns:
    """Flow runs of one work pool, in one of its queues, and those for which nobody named one."""

    def __init__(self, pool: str, queue: str, folder: Path, client: SyncPrefectClient) -> None:
        """`folder` keeps the jobs of runs that a person made by hand."""
        self._pool, self._queue, self._folder, self._client = pool, queue, folder, client
        self._others_taken_in = False

    def _read(self, sort: FlowRunSort | None = None, newest_only: bool = False, **where: Any) -> list[FlowRun]:
        runs = flow_runs(self._client, self._pool, sort, newest_only, **where)
        return [run for run in runs if run.work_queue_name in (self._queue, UNNAMED, None)]

    away: tuple[type[Exception], ...] = (httpx.HTTPError,)
    """What its calls raise while the server does not answer."""

    def asked_for_by(self, run_id: str) -> tuple[bool, str, str]:
        """True where Ratchet itself asked for the job; the message of the newest scheduled state, which may only put it
        off; and the id of the present state."""
        states = self._client.read_flow_run_states(UUID(run_id))
        ours = [state for state in states if state.is_scheduled() and state.name not in PREFECTS_OWN]
        newest = max(ours, key=lambda state: state.timestamp, default=None)
        present = self._client.read_flow_run(UUID(run_id)).state
        return asked_automatically(states), (newest and newest.message) or "", str(present.id) if present else ""

    def open(self, run_id: str) -> Run | None:
        """The run as it is now; None where a poll set its end before."""
        now = self._client.read_flow_run(UUID(run_id))
        return None if now.state is None or now.state.is_final() else self._as_run(now)

    def watched(self, also: Iterable[str]) -> list[Run]:
        """Runs that are Pending, Running or Cancelling, and those named. The first call takes in what others ended."""
        runs = self._read(FlowRunSort.EXPECTED_START_TIME_DESC, state=ALIVE)
        if not self._others_taken_in:  # cancelled or crashed by somebody while no worker watched: its job may live
            runs += self._read(FlowRunSort.EXPECTED_START_TIME_DESC, newest_only=True, state=ENDED_BY_OTHERS)
            self._others_taken_in = True
        missing = sorted({*also} - {str(run.id) for run in runs})
        for first in range(0, len(missing), AT_ONCE):
            runs += flow_runs(self._client, id={"any_": missing[first : first + AT_ONCE]})
        return [self._as_run(run) for run in {run.id: run for run in runs}.values()]

    def cancelling(self) -> list[Run]:
        return [self._as_run(run) for run in self._read(state=of_type(StateType.CANCELLING))]

    def waiting(self) -> list[Run]:
        """Runs that are due and have no job yet, first come first."""
        due = self._read(
            FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            state=of_type(StateType.SCHEDULED),
            next_scheduled_start_time={"before_": datetime.now(UTC)},
        )
        return [self._as_run(run) for run in due]

    def allowed(self) -> int | None:
        """How many runs of the queue the server lets be under way; None: any number."""
        return self._client.read_work_queue_by_name(self._queue, self._pool).concurrency_limit

    def allow(self, at_once: int | None) -> None:
        """Lets the server give out a run of the queue from now on only while fewer than this are Pending or Running."""
        queue = self._client.read_work_queue_by_name(self._queue, self._pool)
        self._client.update_work_queue(queue.id, concurrency_limit=at_once)

    def take_back(self, set_before: Path) -> None:
        """Takes back the limit that an earlier version set for all roots of the pool, and noted in this file."""
        with suppress(FileNotFoundError, ValueError):
            if durable.read_json(set_before) == self._client.read_work_pool(self._pool).concurrency_limit:
                self._client.update_work_pool(self._pool, WorkPoolUpdate(concurrency_limit=None))
            set_before.unlink()

    def set_state(self, wish: SetState) -> bool:
        """Sets the state if the run is still in the one that was read; a run that is gone is no error.

        One that is to go on at once is due since it was first: it goes on before what was started after it.
        """
        try:
            now = self._client.read_flow_run(UUID(wish.run.id))
        except ObjectNotFound:
            return False
        if now.state is None or str(now.state.id) != wish.run.state_id:
            LOG.info("%s is %s by now: not set to %s", now.name, now.state and now.state.name, wish.name)
            return False
        scheduled = wish.type == StateType.SCHEDULED.value
        details = marked(wish.origin) if scheduled else StateDetails()
        if scheduled:
            soon: Any = datetime.now(UTC) + timedelta(seconds=wish.delay_seconds)
            details.scheduled_time = soon if wish.delay_seconds else now.expected_start_time
        state: State[Any] = State(
            type=StateType(wish.type), name=wish.name, message=wish.message, state_details=details
        )
        ours = self._client.set_flow_run_state(now.id, state, force=True).state
        LOG.info("%s: %s. %s", now.name, wish.name, wish.message)
        if now.state.type not in CANCELS and ours is not None:
            self._put_back_a_cancel(now.id, {str(now.state.id), str(ours.id)}, since=now.state.timestamp)
        return True

    def _put_back_a_cancel(self, run_id: UUID, known: set[str], since: Any) -> None:
        """A person may have cancelled the run between our two requests, and Prefect has no way to set a state only
        over another one."""
        later = [state for state in self._client.read_flow_run_states(run_id) if state.timestamp >= since]
        for state in later:
            if state.type in CANCELS and str(state.id) not in known:
                LOG.info("flow run %s was cancelled meanwhile", run_id)
                again = State[Any](type=state.type, name=state.name, message=state.message)
                self._client.set_flow_run_state(run_id, again, force=True)
                return

    def set_job(self, run_id: str, job_id: str) -> None:
        """Notes the SLURM job of a run."""
        try:
            self._client.update_flow_run(UUID(run_id), infrastructure_pid=job_id)
        except ObjectNotFound:
            LOG.info("flow run %s is gone; its job is %s", run_id, job_id)

    def asked(self, run: FlowRun) -> Asked:
        variables = run.job_variables or {}
        return Asked(str(run.id), run.name, run.parameters, variables, self._folder_of(run))

    def _folder_of(self, run: FlowRun) -> Path:
        """Of one that a person made without our dispatch the stage's own, when its parameters name it."""
        asked = run.parameters
        if named := (run.job_variables or {}).get("folder"):
            return Path(named)
        if asked.get("fingerprint") and {"root", "stage", "study_file"} <= asked.keys():
            study = Path(asked["study_file"]).parent.parent.name
            return jobs_folder(RunDirectory(Path(asked["root"]), study, asked["stage"], asked["fingerprint"]))
        return self._folder / str(run.id) / "jobs"

    def _as_run(self, run: FlowRun) -> Run:
        state = run.state
        assert state is not None
        return Run(
            str(run.id),
            str(state.id),
            state.type.value,
            state.name or "",
            state.message or "",
            str(self._folder_of(run)),
        )
