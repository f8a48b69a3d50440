"""One of the numerics of a training that may change at a step: where its machine cannot go on as it began.

A change stands in stage.json before its step is made again. A continuation has the same value at the same step, whether
or not it would have to change there, and so the same bytes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from storage import durable
from tasks.stage.numerics import is_within
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.state import Position


class Changing:
    """The value of `key` at each step: the one that the training began with, until it was changed."""

    def __init__(self, run: StageRun, key: str, value: Any) -> None:
        self._run, self._key, self._value = run, key, value
        self._changes: list[dict[str, Any]] = []
        begun = [durable.read_json(run.run.stage_file)["numerics"]] if run.run.stage_file.exists() else []
        last = None
        for change in [*begun, *run.numerics_changes]:
            if is_within(change):
                self._changes += [change] * (key in change)
            elif change.get(key) != last:  # a person set it, and what was before is over
                self._changes, last = [], change.get(key)

    def after(self, position: Position) -> Any:
        """The value at the step after `position`. A training that went back to an earlier step keeps a change."""
        here = (_rollbacks(position), position.step + 1)
        of = [change for change in self._changes if (change.get("after_rollbacks", 0), change["from_step"]) <= here]
        return of[-1][self._key] if of else self._value

    def at(self, position: Position) -> Any:
        """The value at the step of `position`, the last one that was made."""
        return self.after(replace(position, step=position.step - 1))

    def change(self, position: Position, value: Any, told: str, **more: str) -> None:
        """Sets the value from the step after `position` on; `told` is logged."""
        change = {"from_step": position.step + 1, self._key: value} | more
        if rollbacks := _rollbacks(position):
            change["after_rollbacks"] = rollbacks
        self._run.change_numerics(change)
        self._changes.append(change)
        self._run.log.warning("%s", told, extra=FOR_THE_TERMINAL)


def _rollbacks(position: Position) -> int:
    return len(position.guard.rollbacks) if position.guard else 0
