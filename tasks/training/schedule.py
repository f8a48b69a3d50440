"""The schedule of a training: the steps of a budget, and the learning rate at each."""

import math
from dataclasses import dataclass
from functools import cached_property

from tasks.training.budget import Budget


@dataclass(frozen=True)
class Schedule:
    """A budget over a given number of examples: everything that depends on the step alone.

    Steps are counted from 1; step 0 is the state before training. The last window of an epoch may hold fewer
    examples than the effective batch.
    """

    budget: Budget
    examples: int

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.examples / self.budget.effective_batch_examples)

    @property
    def total_steps(self) -> int:
        if self.budget.epochs is None:
            assert self.budget.steps is not None
            return self.budget.steps
        return max(1, round(self.budget.epochs * self.steps_per_epoch))

    @property
    def warmup_steps(self) -> int:
        return math.ceil(self.budget.warmup_ratio * self.total_steps)

    def learning_rate(self, step: int) -> float:
        """Rate used in `step`: rises linearly over the warm-up, then follows the decay.

        Linear and cosine (Loshchilov and Hutter, "SGDR", 2017, without restarts) reach 0 in the step after the last.
        """
        peak = self.budget.learning_rate
        if step <= self.warmup_steps:
            return peak * step / max(1, self.warmup_steps)
        remaining, after_warmup = self.total_steps + 1 - step, self.total_steps + 1 - self.warmup_steps
        if self.budget.decay == "constant":
            return peak
        if self.budget.decay == "cosine":
            return peak * (1 - math.cos(math.pi * remaining / after_warmup)) / 2
        return peak * remaining / after_warmup

    def window(self, step: int) -> tuple[int, int, int]:
        """(epoch from 0, first index, number of examples) of the window that `step` trains on."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        first = place * self.budget.effective_batch_examples
        return epoch, first, min(self.budget.effective_batch_examples, self.examples - first)

    def fixed_checkpoint(self, step: int) -> int:
        """The newest step up to `step` whose checkpoint the budget fixes: one with a validation, or the start."""
        return max((validated for validated in self.validation_steps if validated <= step), default=0)

    @cached_property
    def validation_steps(self) -> frozenset[int]:
        """The steps with a validation: evenly spaced in each epoch, its end included, and the last step.

        A `not_learning` gate of the budget adds its own step.
        """
        parts = self.budget.validations_per_epoch
        ends = {
            epoch * self.steps_per_epoch + math.ceil(part * self.steps_per_epoch / parts)
            for epoch in range(math.ceil(self.total_steps / self.steps_per_epoch))
            for part in range(1, parts + 1)
        }
        if self.budget.not_learning:
            ends.add(self.budget.not_learning.by_step)
        return frozenset(step for step in ends if step <= self.total_steps) | {self.total_steps}
