"""The guard of a training against spikes: it skips a batch, or goes back to a checkpoint and trains with a lower rate.

All is decided by steps, and a training goes back to a checkpoint that the budget fixes, never to one that was taken
because time passed: so the same happens after any kill. What a kill loses of it happens again, from an earlier
checkpoint; later ones are removed when the first one is saved on the new way.
"""

from dataclasses import dataclass, field
from typing import Any

from storage.errors import NumericalFailure, require
from tasks.training.budget import SpikeGuard

MEMORY = 0.9
"""Weight of the steps before in the running mean of the step losses."""


@dataclass
class Guarded:
    """What the guard remembers, which a checkpoint keeps.

    `mean` is an exponential mean of the step losses, the first of them at the start; `best` is its lowest value so far.
    `skipped` are rows of step and example ids, on the way to the present step; `rollbacks` are rows from_step, to_step
    and the reason, the training's whole lineage.
    """

    mean: float | None = None
    best: float | None = None
    skips_in_a_row: int = 0
    skipped: list[dict[str, Any]] = field(default_factory=list)
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    def require_no_spike(self, guard: SpikeGuard, step: int, loss: float, examples: list[int]) -> None:
        """Raises NumericalFailure for a loss above `spike_factor` times the running best, where that is above 0."""
        if self.best is not None and loss > guard.spike_factor * self.best > 0:
            fault = f"is {loss:.6g}, more than {guard.spike_factor:g} times its running best of {self.best:.6g},"
            raise NumericalFailure(step, examples, "the loss", fault=fault)

    def add(self, loss: float) -> None:
        """Counts the loss of a step that was made."""
        self.mean = loss if self.mean is None else MEMORY * self.mean + (1 - MEMORY) * loss
        self.best = self.mean if self.best is None else min(self.best, self.mean)
        self.skips_in_a_row = 0

    def skip(self, step: int, examples: list[int]) -> dict[str, Any]:
        """Counts a step that was not made; returns its row of metrics."""
        self.skips_in_a_row += 1
        self.skipped.append({"examples": examples, "step": step})
        return {"step": step, "skipped_examples": examples}

    def require_few_skipped(self, steps: int) -> None:
        """CheckFailed where more than half of the `steps` up to here were skipped: such a model is hardly trained."""
        require(
            2 * len(self.skipped) <= steps,
            "most steps of the training are made",
            f"{len(self.skipped):,} of {steps:,} skipped",
            "half at most",
            "metrics.jsonl names their examples: correct these, or the size of the inputs, or lower the learning rate",
        )

    def divisor(self, guard: SpikeGuard) -> float:
        """What the learning rate is divided by."""
        return guard.rate_divisor ** len(self.rollbacks)

    def steps_undone(self) -> int:
        """The steps that were made and undone."""
        return sum(row["from_step"] - row["to_step"] for row in self.rollbacks)
