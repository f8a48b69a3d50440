"""Checkpoints that cost next to nothing: a copy in memory on the training thread, the rest in the background.

One write is in flight at most. What checkpoints cost the training is measured at each of them (the copy, the wait for
a write still in flight, the steps that a write slowed down), and the interval in seconds is widened so that the cost
stays below the share that was allowed. (Mohan et al., "CheckFreq", FAST 2021, tune the interval in this way.)
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from storage.checkpoints import Checkpoint
from tasks.stage.execution import Execution
from tasks.stage.preflight import require_disk
from tasks.stage.run import StageRun
from tasks.training.state import Snapshot, State, size_of

ASSUMED_BYTES_PER_SECOND = 100e6
"""The speed of a slow shared disk, assumed until a save was measured."""
TYPICAL_STEPS = 50
MOMENTS = 2
WORTH_LOGGING = 1.2


class Saver:
    """Writes the checkpoints of one attempt, as a context that waits at its end for the write in flight.

    A training that may go back gives `goes_back_to`, step -> the earlier step whose checkpoint must then be there.
    """

    def __init__(
        self, run: StageRun, execution: Execution, state: State, goes_back_to: Callable[[int], int] | None = None
    ) -> None:
        self._run, self._execution, self._state, self._goes_back_to = run, execution, state, goes_back_to
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._saved_at, self._saved_step = time.monotonic(), state.position.step
        self._every_seconds = execution.checkpoint_every_seconds
        self._undisturbed: deque[float] = deque(maxlen=TYPICAL_STEPS)
        self._stall: dict[str, float] = {}
        self._write_seconds = 0.0
        run.stop.save_seconds = checkpoint_bytes(state) / ASSUMED_BYTES_PER_SECOND

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Waits also after an error: a complete copy in memory is worth the wait."""
        self._run.note(step_seconds=self._run.stop.longest_seconds, save_seconds=self._run.stop.save_seconds)
        if kind is None:
            self._wait()
        else:
            with suppress(Exception):  # the error that is on its way says more
                self._wait()

    def stepped(self, seconds: float) -> None:
        """Records the time of a step; called after each."""
        if self._thread is None:
            self._undisturbed.append(seconds)
        else:
            usual = statistics.median(self._undisturbed) if self._undisturbed else seconds
            self._stall["slowed_seconds"] += max(0.0, seconds - usual)
            if not self._thread.is_alive():
                self._wait()

    def due(self) -> bool:
        """True if an interval has passed. One in seconds waits for the write in flight, one in steps does not."""
        every = self._execution.checkpoint_every_steps
        if every and self._state.position.step % every == 0:
            return True
        return self._thread is None and time.monotonic() - self._saved_at >= self._every_seconds

    def save(self, start: bool = False) -> None:
        """Copies the state and starts to write it; waits first for a write that is still in flight.

        What was saved is not saved again, and neither is the state that an attempt begins with, unless it is the
        `start` of the training.
        """
        position, back, progress = self._state.position, self._goes_back_to, None
        if position.step == self._saved_step and not start:
            return
        self._wait()
        started = time.monotonic()
        state = self._state.as_json() | {"metrics": self._run.metrics.position()}
        self._snapshot.take(self._state.tensors())
        copied = time.monotonic()
        self._stall = {"copy_seconds": copied - started, "waited_seconds": 0.0, "slowed_seconds": 0.0}
        step, needs = position.step, [] if position.best_step is None else [position.best_step]
        if back and position.guard:
            needs, progress = [*needs, back(step)], step + position.guard.steps_undone()

        def write() -> None:
            self._run.metrics.sync()
            self._run.checkpoints.save(step, self._snapshot.groups, state, needs, progress)
            if back:
                self._run.checkpoints.remove_after(step)
            self._run.checkpoints.prune(self._execution.keep_checkpoints)

        self._saved_at, self._saved_step = copied, step
        self._thread = threading.Thread(target=self._guarded, args=(write,), name=f"checkpoint-{step}")
        self._thread.start()

    def finish(self) -> None:
        """Saves the present position if that was not done, and returns when it is durable."""
        self.save()
        self._wait()

    def go_back(self, step: int) -> Checkpoint:
        """The verified checkpoint of `step`, which the training goes on from; ValueError where it is damaged."""
        self._wait()
        self._saved_step = step
        return self._run.checkpoints.verified(step)

    def _guarded(self, write: Callable[[], None]) -> None:
        started = time.monotonic()
        try:
            write()
        except BaseException as error:  # raised on the training thread when it next waits
            self._error = error
        self._write_seconds = time.monotonic() - started

    def _wait(self) -> None:
        """Waits for the write in flight, if any; reports what it cost; raises what went wrong in it."""
        if self._thread is None:
            return
        started = time.monotonic()
        self._thread.join()
        self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        self._stall["waited_seconds"] += time.monotonic() - started
        self._run.stop.save_seconds = self._stall["copy_seconds"] + self._write_seconds
        self._widen()

    def _widen(self) -> None:
        """Sets the next interval in seconds: as configured, or longer if the measured cost demands it."""
        cost = sum(self._stall.values())
        allowed = cost / self._execution.checkpoint_stall_share
        if allowed > WORTH_LOGGING * self._every_seconds and not self._execution.checkpoint_every_steps:
            self._run.log.info(
                "a checkpoint cost %.2f s of training: the next comes after %.0f s, to stay below %.1f %%",
                cost,
                allowed,
                100 * self._execution.checkpoint_stall_share,
            )
        self._every_seconds = max(self._execution.checkpoint_every_seconds, allowed)
        self._run.timing.append(
            {
                "checkpoint": self._saved_step,
                "bytes": self._snapshot.bytes,
                "write_seconds": self._write_seconds,
                **self._stall,
                "next_after_seconds": self._every_seconds,
                "at": time.time(),
            }
        )


def require_disk_for_checkpoints(run: StageRun, state: State, keep: int) -> None:
    """Raises BadInput unless the disk has space for all checkpoints that this training holds at once.

    These are the newest `keep`, the best at each of them, with a guard the one to go back to from each, the last that
    was read, and the one in flight. Those of earlier attempts take their space already.
    """
    need = checkpoint_bytes(state) * (2 * keep + 2 + (keep if state.position.guard else 0))
    present = sum(file.stat().st_size for file in run.run.checkpoints.rglob("*") if file.is_file())
    require_disk(run.directory, max(0, need - present))


def checkpoint_bytes(state: State) -> int:
    """The bytes of a checkpoint's tensors, also before the first step, when AdamW has no moments yet."""
    trained = sum(p.nbytes for p in state.model.parameters() if p.requires_grad)
    others = {group: tensors for group, tensors in state.tensors().items() if group != "optimizer"}
    return size_of(others) + MOMENTS * trained
