"""State and tags of a flow run, as Prefect takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import State, StateType

from tasks.stage.outcome import PrefectState


def prefect_state(state: PrefectState, message: str) -> State[Any]:
    """A state of the table of end states."""
    return State(type=StateType(state.type), name=state.name, message=message)


def add_tags(tags: Sequence[str]) -> None:
    """Adds tags to the present flow run: those of its deployment, or a person's, stay."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=list(dict.fromkeys([*flow_run.tags, *tags])))
