"""Who asked for a flow run's next job, as a real Prefect server keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Late, Pending, Scheduled, State

from deployments.slurm.job.origin import Origin, asked_automatically, marked, origin_of
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.runs import PrefectRuns


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


def test_the_server_keeps_who_asked_through_all_that_comes_between(client: SyncPrefectClient, new_run: UUID) -> None:
    runs = PrefectRuns("pool", lambda run: Path(), client)

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


@pytest.mark.parametrize("origin", ["automatic", "put off", "person"])
def test_what_is_written_is_read(origin: Origin) -> None:
    assert origin_of(Scheduled(state_details=marked(origin))) == origin


def test_a_state_without_a_mark_is_a_persons_and_no_state_is_nobodys() -> None:
    assert origin_of(Scheduled(message="started by a person")) == "person"
    assert not asked_automatically([]) and not asked_automatically([Pending(state_details=marked("automatic"))])
