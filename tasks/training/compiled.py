"""`execution.compile`: what torch.compile makes of a model, or an end that says what to set.

Steps of trainings are compiled; validations and checks are not. In two processes on an H100 under deterministic
algorithms, and on a CPU in the tests, that goes on bit for bit.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from storage.errors import BadInput
from tasks.stage.execution import Execution
from tasks.stage.outcome import is_out_of_memory

MOST_GRAPHS = 64
"""Shapes of a micro-batch that are compiled, each by itself, so that none depends on what an attempt saw before it."""

Network = TypeVar("Network", bound=Callable[..., torch.Tensor])


def compiled(network: Network, execution: Execution) -> Network:
    """The network in the form that `execution.compile` asks for, whatever this process compiled before."""
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
        if execution.compile == "none" or not is_compilers(error):
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


def is_compilers(error: Exception) -> bool:
    """True if the compiler failed, or what it made, such as a CUDA graph; memory that ends is another matter."""
    if isinstance(error, torch._dynamo.exc.TorchDynamoException | torch._dynamo.exc.FailOnRecompileLimitHit):
        return True
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    of_its_own = any(module.startswith("torch._inductor.") for module in modules) or "CUDAGraphs" in str(error)
    return of_its_own and not is_out_of_memory(error)
