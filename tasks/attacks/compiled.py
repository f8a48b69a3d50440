"""The body of a search compiled at one shape: so many sequences of so many tokens. A judge is never compiled.

Padding stands on the right and in rows below, which no prediction reads; what fills less than `FILLED` of the shape is
read as it is.
"""

import torch
from torch import nn

from tasks.attacks.scoring import Victim
from tasks.stage.execution import Execution
from tasks.training.step import compiled, explain_compiler

FILLED = 0.75


def compile_search(execution: Execution, victim: Victim, most_tokens: int) -> None:
    """Compiles what `victim` searches with, where `execution.compile` asks for it: sequences of up to so many tokens.

    A network that is run whole stays as it is. BadInput where the compiler fails, which shows with the first pass.
    """
    if execution.compile == "none" or victim.head is None or type(victim) is not Victim:
        return
    most_rows = victim.batch

    def plain(**read: torch.Tensor) -> torch.Tensor:
        return victim.model.base_model(**read, use_cache=False).last_hidden_state

    at_one_shape = compiled(plain, execution)

    def body(**read: torch.Tensor) -> torch.Tensor:
        ((name, tensors),) = read.items()
        rows, tokens = tensors.shape[:2]
        if rows > most_rows or tokens > most_tokens or rows * tokens < FILLED * most_rows * most_tokens:
            return plain(**read)
        filling = (0, 0) * (tensors.dim() - 2) + (0, most_tokens - tokens, 0, most_rows - rows)
        with explain_compiler(execution):
            return at_one_shape(**{name: nn.functional.pad(tensors, filling).contiguous()})[:rows, :tokens]

    victim.body = body
