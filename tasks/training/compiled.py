"""`torch.compile` as a ladder: a compiler never ends a training, and the rung of each step is part of its numerics.

Only steps are compiled, and searches of attacks (tasks/attacks/compiled.py); validations and checks are not. `default`
is the rung that goes on bit for bit after a kill (in two processes on an H100 under deterministic algorithms, and on a
CPU in the tests); the others are not shown to.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy

import psutil
import torch
from torch import nn

from storage.errors import require
from tasks.stage.execution import Execution
from tasks.stage.outcome import is_out_of_memory
from tasks.stage.preflight import GIB
from tasks.stage.run import StageRun
from tasks.training.changing import Changing
from tasks.training.state import Position

RUNGS = ("max-autotune", "reduce-overhead", "default", "none")
OF_A_GPU = RUNGS[:2]
MOST_GRAPHS = 64
"""Shapes of a micro-batch that are compiled, each by itself, so that none depends on what an attempt saw before it."""
LEAST_CAPABILITY, LEAST_BYTES = (7, 0), 2 * GIB
"""Of a GPU for Triton; of the machine's free memory, for a compiler beside the training."""


def refusal(rung: str, device: torch.device) -> str:
    """Why this machine cannot compile at a rung; empty where it can, as far as may be told before it tries."""
    if rung == "none":
        return ""
    free = psutil.virtual_memory().available  # with what the page cache gives back
    if free < LEAST_BYTES:
        return f"{free / GIB:.1f} GiB of memory are free, and a compiler takes {LEAST_BYTES / GIB:.0f}"
    if device.type != "cuda":
        if rung in OF_A_GPU:
            return "it is for a GPU"
        compiler = os.environ.get("CXX", "g++")
        return "" if shutil.which(compiler) else f"there is no C++ compiler {compiler} (CXX names another)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    capability = torch.cuda.get_device_capability(device)
    return "" if capability >= LEAST_CAPABILITY else f"the GPU has capability {capability}, Triton asks for (7, 0)"


def prepare_compiler() -> None:
    """Sets up `torch.compile` so that what is compiled does not depend on what this process compiled before."""
    import torch._dynamo  # takes a second
    import torch._inductor.config

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._inductor.config.fallback_random = True  # else dropout draws other numbers
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True


class Lowered(Exception):
    """The compiler failed: the step is to be made again, at a lower rung."""


class Rungs(Changing):
    """The rung at each step: `execution.compile`, or a lower one from a step on where it could not be."""

    def __init__(self, run: StageRun, execution: Execution, model: nn.Module, position: Position) -> None:
        super().__init__(run, "compile", execution.compile)
        self._model, self._began_at, self._goes_on = model, position.step, execution.allow_numerics_change
        self._networks: dict[str, nn.Module] = {"none": model}
        if execution.compile == "none":
            return
        prepare_compiler()
        while why := refusal(self.after(position), next(model.parameters()).device):
            self._lower(position, why)

    @contextmanager
    def network(self, position: Position, repeat: Callable[[nn.Module], None]) -> Iterator[nn.Module]:
        """The model, compiled or not, that computes the losses of the step after `position`.

        `repeat` computes with a network those of the last step, which may leave gradients. Raises Lowered; CheckFailed
        where this machine cannot compile that either, which the one before did, unless
        `execution.allow_numerics_change`.
        """
        rung, before = self.after(position), copy(position)
        if first := rung not in self._networks:
            self._networks[rung] = torch.compile(self._model, mode=rung, dynamic=False)
        try:
            yield self._networks[rung]
        except Exception as error:
            if not is_compilers(error, rung):
                raise
            why = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
            self._lower(position, why, lambda: self._repeats(rung, repeat))
            raise Lowered from error
        self._began_at = 0  # from here on this machine can, whatever fails
        if first and not torch._dynamo.utils.counters["frames"]["ok"]:
            why = "the losses do not call the model itself"
            self.change(before, "none", f"nothing is compiled: {why}", why=why)

    def _repeats(self, rung: str, repeat: Callable[[nn.Module], None]) -> bool:
        """Whether this machine compiles the last step: then it is the next one that nothing compiles."""
        try:
            repeat(self._networks[rung])
        except Exception as error:
            if not is_compilers(error, rung):
                raise
            return False
        return True

    def _lower(self, position: Position, why: str, repeats: Callable[[], bool] = lambda: False) -> None:
        rung, step = self.after(position), position.step + 1
        lower = RUNGS[RUNGS.index(rung) + 1]
        taken_over = 0 < self._began_at == position.step and self.at(position) == rung
        require(
            self._goes_on or not taken_over or repeats(),
            f"the model is compiled as in the steps before, by execution.compile={rung}",
            why,
            "a machine that can",
            f"Or set execution.allow_numerics_change=true: then it goes on with {lower}, and the result says so",
        )
        told = f"from step {step:,} on the model is compiled with the mode {lower} instead of {rung}: {why}"
        self.change(position, lower, told, why=why)


def is_compilers(error: Exception, rung: str) -> bool:
    """Whether the compiler failed, or what it made, such as a CUDA graph; memory that ends is another matter."""
    if rung == "none":
        return False
    if isinstance(error, torch._dynamo.exc.TorchDynamoException | torch._dynamo.exc.FailOnRecompileLimitHit):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_its_own = any(module.startswith("torch._inductor.") for module in modules) or "CUDAGraphs" in str(error)
    return of_its_own and not is_out_of_memory(error)
