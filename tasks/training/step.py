"""One optimizer step: the losses and gradients of a window, and an end before what is not finite changes a weight.

A host runs ahead of its GPU: it looks at the numbers of a step while the next one is computed. A step that is not
finite changes nothing: the fused AdamW leaves weights and moments as they are where its `found_inf` says so, and so it
does in the steps behind it, until the host has looked. Then the training is as it was before that step, which is made
again by a host that waits: it fails, and is told and kept, as if the host had always waited.
"""

import math
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from storage.errors import BadInput
from tasks.stage.execution import Execution
from tasks.stage.generators import generator_tensors
from tasks.stage.outcome import is_out_of_memory
from tasks.training.budget import Budget
from tasks.training.culprits import FailedStep, Step
from tasks.training.gradients import norm_in_fp64
from tasks.training.loader import MicroBatches, examples_of
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position, State, StepStart

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


def optimizer_step(
    problem: Problem,
    schedule: Schedule,
    state: State,
    batches: MicroBatches,
    micro_batch_examples: int,
    seed: int,
    see: Callable[[float], None] = lambda norm: None,
    network: nn.Module | None = None,
) -> None:
    """Accumulates the micro-batches of one window, each divided by the weight of the whole window, and steps.

    `see` is called with the global norm of the gradients while they are in the model, finite and not yet clipped.
    `network` is the model in another form, compiled for example, in which it computes the losses.
    Raises FailedStep before anything of the model was changed.
    """
    budget, step = schedule.budget, state.position.step + 1
    epoch, _, count = schedule.window(step)
    weight: float = count
    if problem.weights is not None:
        weight = problem.window_weight(examples_of(schedule, problem.order, seed, step), epoch)
    if not problem.model.training:  # after a validation: to tell every module takes a millisecond
        problem.model.train()
    device = state.parameters[0].device
    generators = generator_tensors(device.type == "cuda")
    for group in problem.optimizer.param_groups:
        group["lr"] = learning_rate(schedule, state.position, step)
    ahead = None if state.ahead is None or state.ahead.waits_at == step else state.ahead
    start = StepStart(problem.model) if ahead else None
    sums, examples = [], []
    for indices, batch in islice(batches, math.ceil(count / micro_batch_examples)):
        micro_sum = _summed(problem, budget, problem.model if network is None else network, batch)
        (micro_sum / weight).backward()
        sums.append(micro_sum.detach())
        examples.append(indices)
    gradients = [p.grad for p in state.parameters if p.grad is not None]
    total = nn.utils.get_total_norm(gradients)
    numbers, found_inf = torch.stack([*sums, total]), None
    if ahead and start:
        found_inf = ahead.launch(start, step, weight, numbers)
    else:
        *loss_sums, norm = numbers.tolist()  # the only moment of a step that waits for a GPU
        if not math.isfinite(norm):
            norm = float(total := norm_in_fp64(gradients))
        attempted = Step(step, epoch, examples, weight, generators, budget.precision == "bf16")
        _require_finite(problem.model, attempted, loss_sums, norm)  # before clipping spreads what is not finite
        loss, guarded = sum(loss_sums) / weight, state.position.guard
        if budget.guard and guarded:
            guarded.require_no_spike(budget.guard, step, loss, np.concatenate(examples).tolist())
            guarded.add(loss)
        see(norm)
        state.position.count(loss_sums, norm, weight, budget.max_gradient_norm)
    state.changing = True
    nn.utils.clip_grads_with_norm_(state.parameters, budget.max_gradient_norm, total)
    problem.optimizer.found_inf = found_inf  # as torch's GradScaler hands it over
    problem.optimizer.step()
    problem.optimizer.zero_grad(set_to_none=True)
    if state.average is not None:
        state.average.update_parameters(problem.model)
    state.position.step = step
    state.changing = False


def _summed(problem: Problem, budget: Budget, network: nn.Module, batch: Any) -> torch.Tensor:
    device = next(problem.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=budget.precision == "bf16"):
        return problem.losses(network, batch).float().sum()


def learning_rate(schedule: Schedule, position: Position, step: int) -> float:
    """The rate used in `step`: that of the schedule, divided for each time that the training went back."""
    rate, guard = schedule.learning_rate(step), schedule.budget.guard
    return rate / position.guard.divisor(guard) if guard and position.guard else rate


def _require_finite(model: nn.Module, attempted: Step, loss_sums: list[float], norm: float) -> None:
    """Raises FailedStep naming the batch and the tensor, before the weights change."""
    for loss_sum, indices in zip(loss_sums, attempted.examples, strict=True):
        if not math.isfinite(loss_sum):
            raise FailedStep(attempted, indices.tolist(), "the loss")
    if not math.isfinite(norm):
        culprit = next(
            name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
        )
        raise FailedStep(attempted, np.concatenate(attempted.examples).tolist(), f"the gradient of {culprit}")


MOST_GRAPHS = 64
"""Shapes of a micro-batch that are compiled, each by itself, so that none depends on what an attempt saw before it."""


Network = TypeVar("Network", bound=Callable[..., torch.Tensor])


def compiled(network: Network, execution: Execution) -> Network:
    """The network in the form that `execution.compile` asks for, whatever this process compiled before. In two
    processes on an H100 under deterministic algorithms, and on a CPU in the tests, its steps go on bit for bit."""
    if execution.compile == "none":
        return network
    import torch._dynamo  # takes a second
    import torch._inductor.config

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._inductor.config.fallback_random = True  # else dropout draws other numbers
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(network, mode=execution.compile, dynamic=False)


@contextmanager
def explain_compiler(execution: Execution) -> Iterator[None]:
    """Turns what the compiler raises, or that nothing was compiled, into BadInput with what to set; no other error."""
    try:
        yield
    except Exception as error:
        if execution.compile == "none" or not _is_compilers(error):
            raise
        lines = str(error).strip().splitlines() or [""]
        raise _refusal(execution, f"{type(error).__name__}: {lines[0][:200]}") from error
    if execution.compile != "none" and not torch._dynamo.utils.counters["frames"]["ok"]:
        raise _refusal(execution, "nothing is compiled, since the losses do not call the model itself")


def _refusal(execution: Execution, why: str) -> BadInput:
    return BadInput(
        f"execution.compile={execution.compile}, and the model cannot be compiled here ({why}): install what the "
        "compiler misses (g++ for a CPU, Triton for a GPU), or set execution.compile=none, and where steps were made "
        "already execution.allow_numerics_change=true too"
    )


def _is_compilers(error: Exception) -> bool:
    """True if the compiler failed, or what it made, such as a CUDA graph; memory that ends is another matter."""
    if isinstance(error, torch._dynamo.exc.TorchDynamoException | torch._dynamo.exc.FailOnRecompileLimitHit):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_its_own = any(module.startswith("torch._inductor.") for module in modules) or "CUDAGraphs" in str(error)
    return of_its_own and not is_out_of_memory(error)
