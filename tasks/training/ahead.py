"""A host that runs ahead of its GPU: it looks at the numbers of a step while the next one is computed.

A step that is not finite changes nothing: the fused AdamW leaves weights and moments as they are where its `found_inf`
says so, and so it does in the steps behind it, until the host has looked. Then the training is as it was before that
step, which is made again by a host that waits: it fails, and is told and kept, as if the host had always waited.
"""

import math
from collections import deque
from dataclasses import dataclass

import torch

from tasks.training.schedule import Schedule
from tasks.training.state import State, StepStart

DEVICES = ("cuda",)
"""Elsewhere the numbers are there as soon as the step is."""


@dataclass(frozen=True)
class Launched:
    """A step that the host has not looked at: its start, and its summed losses and norm of gradients, on their way."""

    start: StepStart
    step: int
    weight: float
    numbers: torch.Tensor
    copied: torch.cuda.Event | None


class Ahead:
    """The steps of a training that the host has not looked at, two at most."""

    def __init__(self) -> None:
        self._launched: deque[Launched] = deque()
        self._so_far: torch.Tensor | None = None
        self.waits_at = 0
        """The step that the host waits for, since it was not finite."""

    def launch(self, start: StepStart, step: int, weight: float, numbers: torch.Tensor) -> torch.Tensor:
        """`found_inf` of the optimizer: 1 where the `numbers` of this step, or of one that led here, are not finite."""
        copied = torch.cuda.Event() if numbers.is_cuda else None
        self._launched.append(Launched(start, step, weight, numbers.to("cpu", non_blocking=True), copied))
        if copied is not None:
            copied.record()
        zero = numbers.sum() * 0  # or NaN
        self._so_far = zero if self._so_far is None else zero + self._so_far
        return self._so_far.isnan().float()

    def look(self, state: State, clip: float, leave: int = 0) -> bool:
        """Counts the steps that were launched, but for the newest `leave`.

        False where one is not finite: `state` is then as before it, and it is to be made again.
        """
        while len(self._launched) > leave:
            launched = self._launched.popleft()
            if launched.copied is not None:
                launched.copied.synchronize()
            *loss_sums, norm = launched.numbers.tolist()
            if not all(map(math.isfinite, (*loss_sums, norm))):
                launched.start.restore(state)
                state.position.step, self.waits_at = launched.step - 1, launched.step
                self._launched.clear()
                self._so_far = None
                return False
            state.position.count(loss_sums, norm, launched.weight, clip)
        return True


def ahead_of(state: State, schedule: Schedule) -> Ahead | None:
    """None where the host waits for each step: a guard reads its loss; averages and hooks do not know of it."""
    optimizer = state.optimizer
    if state.parameters[0].device.type not in DEVICES or schedule.budget.guard or state.average is not None:
        return None
    plain = isinstance(optimizer, torch.optim.AdamW) and all(group["fused"] for group in optimizer.param_groups)
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return Ahead() if plain and not hooks else None
