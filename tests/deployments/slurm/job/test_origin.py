"""Who asked for a flow run's next job, as a real Prefect server keeps it."""

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Cancelling, Late, Pending, Running, Scheduled, State

from deployments.slurm.job.plan import Origin
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.runs import PrefectRuns, asked_automatically, marked, origin_of


@pytest.fixture(scope="module")
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def new_run(client: SyncPrefectClient) -> UUID:
    """A flow run that Ratchet itself started."""
    pool = f"pool-{uuid4().hex[:8]}"
    client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    deployment = client.create_deployment(
        client.create_flow(flow(lambda: None, name="stage")), pool, work_pool_name=pool
    )
    first = Scheduled(state_details=marked("automatic"))
    return client.create_flow_run_from_deployment(deployment, state=first).id


def test_the_server_keeps_who_asked_through_all_that_comes_between(client, new_run):
    runs = PrefectRuns("pool", "root", Path(), client)

    def automatic() -> bool:
        return asked_automatically(client.read_flow_run_states(new_run))

    def ours(origin: Origin) -> None:
        """A state that the worker of the pool sets."""
        present = client.read_flow_run(new_run).state
        assert present is not None
        run = Run(str(new_run), str(present.id), present.type.value, present.name)
        assert runs.set_state(SetState(run, "SCHEDULED", "AwaitingRetry", "the same words", origin=origin))

    def prefects(state: State) -> None:
        """A state that Prefect sets, or a person by its command or in its UI."""
        client.set_flow_run_state(new_run, state, force=True)

    assert automatic()
    for state in (Late(), Pending(), Pending(name="Submitting")):
        prefects(state)
    ours("put off")
    assert automatic()
    prefects(Scheduled(name="AwaitingRetry", message="the same words"))
    assert not automatic(), "a person retried it"
    prefects(Late())
    ours("put off")
    assert not automatic()
    prefects(Pending())
    ours("automatic")
    assert automatic()


def test_a_stage_that_goes_on_is_due_before_one_that_was_started_after_it(client, new_run):
    """With 8 places and 300 trainings, one that met its time limit would go on after 36 rounds of the others."""
    first = client.read_flow_run(new_run)
    later = client.create_flow_run_from_deployment(first.deployment_id)
    runs = PrefectRuns(first.work_pool_name or "", "root", Path(), client)
    client.set_flow_run_state(new_run, Running(), force=True)
    present = runs.watched([])[0]
    assert runs.set_state(SetState(present, "SCHEDULED", "AwaitingRetry", "the time limit"))
    assert [run.id for run in runs.waiting()] == [str(new_run), str(later.id)]
    client.set_flow_run_state(new_run, Running(), force=True)
    assert runs.set_state(SetState(runs.watched([])[0], "SCHEDULED", "AwaitingRetry", "it crashed", 300.0))
    assert [run.id for run in runs.waiting()] == [str(later.id)]


@pytest.mark.parametrize("cancel", [Cancelling(), Cancelled(message="by a person")], ids=lambda state: state.name)
def test_a_cancel_between_the_two_requests_of_a_wish_is_not_lost(client, new_run, cancel, monkeypatch):
    runs = PrefectRuns("pool", "root", Path(), client)
    read = client.read_flow_run

    def and_a_person_cancels(run_id: UUID) -> FlowRun:
        answer = read(run_id)
        monkeypatch.setattr(client, "read_flow_run", read)
        client.set_flow_run_state(run_id, cancel, force=True)
        return answer

    present = read(new_run).state
    assert present is not None
    monkeypatch.setattr(client, "read_flow_run", and_a_person_cancels)
    wish = SetState(Run(str(new_run), str(present.id), "SCHEDULED", "Scheduled"), "SCHEDULED", "Waits", "for a place")
    runs.set_state(wish)
    now = read(new_run).state
    assert now is not None and (now.type.value, now.message) == ("CANCELLED", cancel.message), "it had no job yet"


@pytest.mark.parametrize("origin", ["automatic", "put off", "person"])
def test_what_is_written_is_read(origin):
    assert origin_of(Scheduled(state_details=marked(origin))) == origin


def test_a_state_without_a_mark_is_a_persons_and_no_state_is_nobodys():
    assert origin_of(Scheduled(message="started by a person")) == "person"
    assert not asked_automatically([]) and not asked_automatically([Pending(state_details=marked("automatic"))])
