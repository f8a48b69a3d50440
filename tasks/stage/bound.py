"""Generators of random numbers that were made before a loop: one that draws in it makes items depend on one another."""

import inspect
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

MEMBERS = 1000
"""Of a list or an object so many are looked at."""


class BoundGenerators:
    """Generators that names of some frames lead to, or their members, with their state; not those that all share."""

    def __init__(self, frames: Iterable[FrameType]) -> None:
        torch = sys.modules.get("torch")
        shared = {id(random._inst), id(np.random.mtrand._rand), id(torch and torch.default_generator)}
        self._states: dict[int, tuple[str, Any, bytes]] = {}
        for frame in frames:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                for place, member in members(name, value):
                    if id(member) not in shared and (state := state_of(member)) is not None:
                        self._states.setdefault(id(member), (place, member, state))

    def changed(self, kept: Mapping[str, Any] | None = None) -> str:
        """The name of one that has drawn since, and that is none of what is `kept`; empty where none has."""
        known = {id(member) for value in (kept or {}).values() for _, member in members("", value)}
        own = [(name, member) for name, member, state in self._states.values() if state_of(member) != state]
        return next((name for name, member in own if id(member) not in known), "")


def frames() -> Iterator[FrameType]:
    """Frames of the work that asks for the next item, the innermost first."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (module := frame.f_globals.get("__name__")) != "tasks.stage.attempt":
        if not str(module).startswith(("tasks.stage.", "deployments.")):
            yield frame
        frame = frame.f_back


def members(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value and what it holds, by name."""
    yield name, value
    if isinstance(value, list | tuple):
        yield from ((f"{name}[{number}]", member) for number, member in enumerate(value[:MEMBERS]))
    elif isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", member) for key, member in [*islice(value.items(), MEMBERS)])
    elif not isinstance(value, type | ModuleType | FunctionType):
        own = inspect.getattr_static(value, "__dict__", None) and getattr(value, "__dict__", {})
        yield from ((f"{name}.{key}", member) for key, member in [*islice((own or {}).items(), MEMBERS)])


def state_of(value: Any) -> bytes | None:
    """The state of a generator; None for anything else."""
    torch = sys.modules.get("torch")
    if isinstance(value, np.random.Generator):
        return state_of(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        return _bytes((value.state, getattr(value.seed_seq, "n_children_spawned", 0)))
    if isinstance(value, np.random.SeedSequence):
        return _bytes(value.n_children_spawned)
    if isinstance(value, np.random.RandomState):
        return _bytes(value.get_state(legacy=False))
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _bytes(value.getstate())
    if torch and isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    return None


def _bytes(state: Any) -> bytes:
    return json.dumps(state, default=lambda array: array.tolist()).encode()
