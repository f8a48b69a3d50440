"""The state of searches, kept now and then, so that a continuation loses little of them."""

import time
from typing import Generic, TypeVar

from tasks.stage.execution import Execution
from tasks.stage.run import StageRun

State = TypeVar("State")


class Ledger(Generic[State]):
    """What searches have reached, by name, as JSON. `done` counts their steps."""

    def __init__(self, run: StageRun, settings: Execution) -> None:
        self.run, self.settings = run, settings
        saved = run.checkpoints.newest_verified()
        self.searches: dict[str, State] = saved.state["searches"] if saved else {}
        self.done = saved.step if saved else 0
        self.saved_at = time.monotonic()

    def keep(self, searches: dict[str, State], *, now: bool) -> None:
        """After a step: durable where that is due, or asked for, or the run is stopped, which raises Stop."""
        self.done, self.searches = self.done + 1, searches
        if now or self._due() or self.run.stop.requested:
            self.run.checkpoints.save(self.done, {}, {"searches": self.searches})
            self.run.checkpoints.prune(self.settings.keep_checkpoints)
            self.saved_at = time.monotonic()
        self.run.stop.check()

    def _due(self) -> bool:
        every = self.settings.checkpoint_every_steps
        by_step = every is not None and self.done % every == 0
        return by_step or time.monotonic() - self.saved_at >= self.settings.checkpoint_every_seconds
