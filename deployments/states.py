"""The states of the table of end states (`tasks.stage.outcome`), as Prefect takes them."""

from __future__ import annotations

from typing import Any

from prefect.states import State, StateType

from tasks.stage.outcome import PrefectState


def prefect_state(state: PrefectState, message: str) -> State[Any]:
    return State(type=StateType(state.type), name=state.name, message=message)
