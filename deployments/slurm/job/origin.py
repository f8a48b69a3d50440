"""Who asked for a flow run's next job: kept in the scheduled state that asks for it.

Prefect keeps no author of a state, and a retry in its UI or by its command has the type, and in the UI the name, of the
states that we set. A state's details are the only part of it besides its texts that the server keeps as it was given:
the client drops the data of a state, and tags or variables belong to the run, so that a worker that dies between two
requests would leave them without their state. Of the details, no rule of Prefect reads the keys of inputs unless the
run is paused, and a state that Prefect or a person sets has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from prefect.client.schemas.objects import StateDetails
from prefect.states import State

Origin = Literal["automatic", "put off", "person"]
"""Ratchet itself asks for the job; or it only puts off what was asked for before; or, with no mark, a person asks."""

_KEY = "ratchet-origin"
PREFECTS_OWN = ("Late", "AwaitingConcurrencySlot")
"""Names of scheduled states that Prefect sets by itself: nobody asks for anything by them."""


def marked(origin: Origin) -> StateDetails:
    """Details for a new state of this origin."""
    return StateDetails() if origin == "person" else StateDetails(run_input_keyset={_KEY: origin})


def origin_of(state: State[Any]) -> Origin:
    """Who asked for a job by this state; `put off` for one by which nobody did.

    A state that an earlier version set has no mark and counts as a person's: once a run, since the next one has it.
    """
    mark = (state.state_details.run_input_keyset or {}).get(_KEY)
    if state.name in PREFECTS_OWN or mark == "put off":
        return "put off"
    return "automatic" if mark == "automatic" else "person"


def asked_automatically(states: Iterable[State[Any]]) -> bool:
    """Whether Ratchet itself asked for the job that comes next, by all states of its flow run."""
    asked = [state for state in states if state.is_scheduled() and origin_of(state) != "put off"]
    newest = max(asked, key=lambda state: state.timestamp, default=None)
    return newest is not None and origin_of(newest) == "automatic"
